"""What listening costs on a GPU: a Llama shape of 1.16 billion parameters in bfloat16, 8,192 tokens a step.

    PYTHONPATH=src python benchmarks/gpu_cost.py --json FILE [--short]

Parts, in this order; `--only` chooses some. Each writes its result to the file as soon as it has one, and an error of
one part is written down and does not stop the others.

    reads    one read of buffers and of the model's gradients, against a copy, torch's norms and fingerprints
    equal    weights bit for bit the same with and without unisono (small model, one rank, both bucket views)
    waits    steps while waiting for the GPU is an error; copies between host and GPU that unisono starts
    kernels  GPU time by kernel, with unisono and without (torch.profiler)
    step     milliseconds a step without unisono, with every step heard, with the default schedule; memory
    shared   two gloo ranks sharing the GPU, a small model: the same, and equal weights

All but the last train in one process: one rank with NCCL. Blocks of steps take turns, as in `unisono bench`; times of
steps are between CUDA events. `--device cpu --short` shows that it works.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA begins: runs are compared bit by bit

import torch
import torch.distributed as dist
from gpu_checks import kernels, waits, weights_after

from unisono.lab.bench.job import trainee
from unisono.lab.bench.measuring import machine
from unisono.lab.bench.models import LLAMA, shape_for
from unisono.lab.bench.reading_cost import of_buffers, of_model, of_tensors
from unisono.lab.bench.request import CPU_SIZES, GPU_SIZES
from unisono.lab.bench.step_cost import step_cost
from unisono.lab.bench.timing import Stopwatch
from unisono.lab.launching import torchrun

SMALL = shape_for(20_000_000)
TINY = shape_for(1_000_000)
SHARED_TIMEOUT = 150


class Bench:
    def __init__(self, device: torch.device, short: bool, home: Path) -> None:
        self.device, self.short, self.home = device, short, home
        on_gpu = device.type == "cuda"
        self.shape = replace(LLAMA, layers=2) if on_gpu and short else LLAMA if on_gpu else TINY
        self.small = SMALL if on_gpu else TINY
        self.batch, self.small_batch = ((4, 2048), (4, 256)) if on_gpu else ((2, 64), (2, 64))
        self.turns, self.steps = (2, 4) if short else (5, 12)
        self._made = 0

    def trainee(self, shape, batch, **wrapping):
        self._made += 1
        settles = 0.1 if self.short else 1.0
        return trainee(shape, batch, self.device, self.home / str(self._made), settles, **wrapping)

    def reads(self, put):
        stopwatch = Stopwatch(self.device, 0.3 if self.short else 1.0)
        sizes = GPU_SIZES if self.device.type == "cuda" else CPU_SIZES
        sizes = sizes[:1] if self.short else sizes
        dtypes = (torch.float32, torch.bfloat16, torch.float16)
        for dtype in dtypes:
            put(f"buffers, {dtype}", of_buffers(sizes, [dtype], stopwatch))
        for dtype in dtypes[:2]:
            put(f"model, {dtype}", of_model(self.shape, dtype, stopwatch))
        if self.device.type == "cuda":
            equal = {f"layer.weight{number}": (4 << 20,) for number in range(256)}
            put("256 tensors of 4 Mi, torch.bfloat16", of_tensors(equal, torch.bfloat16, stopwatch))

    def equal(self, put):
        torch.use_deterministic_algorithms(True)
        try:
            for bucket_view in (False, True):
                put(f"gradient_as_bucket_view={bucket_view}", self._equal(10, bucket_view))
        finally:
            torch.use_deterministic_algorithms(False)

    def _equal(self, steps, bucket_view):
        found = [weights_after(self._small(bucket_view), steps, listening) for listening in (False, False, True)]
        return {"steps": steps, "repeats_itself": found[0] == found[1], "equal_with_unisono": found[0] == found[2]}

    def _small(self, bucket_view):
        return self.trainee(self.small, self.small_batch, gradient_as_bucket_view=bucket_view)

    def waits(self, put):
        for bucket_view in (False, True):
            put(f"gradient_as_bucket_view={bucket_view}", waits(self._small(bucket_view), 12))

    def kernels(self, put):
        put("a step", kernels(self.trainee(self.shape, self.batch), 5))

    def step(self, put):
        described = {"parameters": self.shape.parameters, "tokens": self.batch[0] * self.batch[1]}
        for bucket_view in (False, True):
            learner = self.trainee(self.shape, self.batch, gradient_as_bucket_view=bucket_view)
            found = step_cost(learner, self.turns, self.steps, lambda: None)
            put(f"gradient_as_bucket_view={bucket_view}", described | found)
            del learner
            gc.collect()

    def shared(self, put):
        put("two ranks", launched(self.device.type, self.short, self.home / "shared.json"))

    def as_one_of_two(self, put):
        """What each of two ranks does that share the GPU."""
        self.turns, self.steps = (1, 2) if self.short else (2, 5)
        self.equal(put)
        put("parameters", self.small.parameters)
        put("a step", step_cost(self._small(False), self.turns, self.steps, lambda: None))


PARTS = ("reads", "equal", "waits", "kernels", "step", "shared")


def launched(device, short, result):
    script = Path(__file__).resolve()
    command = [*torchrun(2, script, "--as-one-of-two", "--device", device, "--json", str(result))]
    command += ["--short"] if short else []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            _, said = process.communicate(timeout=SHARED_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher ends its ranks; killed, it would leave them behind
            _, said = process.communicate()
    found = json.loads(result.read_text()) if result.exists() else {}
    return found if process.returncode == 0 else found | {"error": said[-2000:]}


class Book:
    """Results so far, in the file after each."""

    def __init__(self, file, command, device):
        self.file = file
        self.began = time.perf_counter()
        self.content = {"command": command, "machine": machine(device.type)}

    def run(self, name, work):
        began, part = time.perf_counter(), self.content.setdefault(name, {})
        try:
            work(lambda key, value: self._put(part, key, value))
        except Exception as error:
            part["error"] = f"{type(error).__name__}: {error}"
        self._put(part, "seconds", round(time.perf_counter() - began, 1))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        print(f"{time.perf_counter() - self.began:6.1f} s  {name}: {json.dumps(part)[:2000]}", flush=True)

    def _put(self, part, key, value):
        part[key] = value
        if self.file is not None:
            self.file.write_text(json.dumps(self.content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", metavar="FILE", type=Path, required=True)
    parser.add_argument("--short", action="store_true", help="shows that it works, too short for a figure")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--as-one-of-two", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device, *([0] if options.device == "cuda" else []))
    with tempfile.TemporaryDirectory() as home:
        if options.as_one_of_two:
            one_of_two(options, device)
        else:
            alone(options, device, Path(home))


def alone(options, device, home):
    meet("nccl" if device.type == "cuda" and dist.is_nccl_available() else "gloo", device, home)
    bench = Bench(device, options.short, home)
    assembler = Book(options.json, " ".join(["python", *sys.argv]), device)
    for part in options.only:
        assembler.run(part, getattr(bench, part))
    part_ways()


def meet(backend, device, home=None):
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if home is None:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, init_method=f"file://{home}/rendezvous", rank=0, world_size=1)


def one_of_two(options, device):
    meet("gloo", device)
    home = [tempfile.mkdtemp()]
    dist.broadcast_object_list(home)
    bench = Bench(device, options.short, Path(home[0]))
    assembler = Book(options.json if dist.get_rank() == 0 else None, "one of two ranks", device)
    assembler.run("found", bench.as_one_of_two)
    part_ways()


def part_ways():
    dist.barrier()
    gc.collect()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
