"""What a step costs at which nobody listens: the small numbers of every step, on CPU, two processes.

    torchrun --standalone --nproc-per-node 2 benchmarks/unheard_cost.py [--width 64 256] [--steps 250 | --short]
        [--json FILE]

Steps of deep, narrow models are nearly all Python, which runs one thread at a time: the worst case. Blocks with and
without unisono take turns. Processor time of the listening thread is the kernel's own count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import unisono

LAYERS, BATCH, CLASSES = 24, 8, 10
NEVER = unisono.every(10**9)
"""Only the first step is heard."""

WARM_UP, TURNS = 60, 7


class Training:
    def __init__(self, width: int) -> None:
        layers = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(LAYERS)]
        self.model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, CLASSES)))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.inputs, self.targets = torch.randn(BATCH, width), torch.randint(0, CLASSES, (BATCH,))

    def milliseconds(self, steps: int) -> float:
        """Of a step, on the mean."""
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(self.inputs), self.targets).backward()
            self.optimizer.step()
        return 1e3 * (time.perf_counter() - begin) / steps


def listening_milliseconds() -> float:
    """Processor time of the listening thread so far."""
    thread = next(thread for thread in threading.enumerate() if thread.name == "unisono")
    return 1e3 * time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


def measured(width: int, steps: int, turns: int, folder: str) -> dict[str, Any]:
    training = Training(width)
    training.milliseconds(WARM_UP)
    without, with_it, listening = [], [], []
    for turn in range(turns):
        without.append(training.milliseconds(steps))
        run_dir = f"{folder}/{width}-{turn}" if dist.get_rank() == 0 else None
        with unisono.attach(training.model, training.optimizer, schedule=NEVER, run_dir=run_dir):
            training.milliseconds(WARM_UP)
            before = listening_milliseconds()
            with_it.append(training.milliseconds(steps))
            listening.append((listening_milliseconds() - before) / steps)
    listening_W: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(listening_W, statistics.median(listening))
    ratios = [b / a for a, b in zip(without, with_it, strict=True)]
    return {
        "width": width,
        "steps": steps,
        "milliseconds_without": statistics.median(without),
        "ratio": statistics.median(ratios),
        "ratios": sorted(round(ratio, 3) for ratio in ratios),
        "listening_thread_milliseconds_W": listening_W,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--short", action="store_true", help="once, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps, turns = (40, 1) if options.short else (options.steps, TURNS)
    with tempfile.TemporaryDirectory() as folder:
        results = [measured(width, steps, turns, folder) for width in options.width]
    if dist.get_rank() == 0:
        command = " ".join(["torchrun --standalone --nproc-per-node 2", *sys.argv])
        text = json.dumps({"command": command, "torch": str(torch.__version__), "results": results}, indent=1)
        print(text)
        if options.json:
            Path(options.json).write_text(text + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
