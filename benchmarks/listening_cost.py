"""What listening costs on CPU: two processes, a transformer of 10 M parameters, 1,024 tokens a step.

    python benchmarks/listening_cost.py [--small] [--steps 1200 | --short] [--every N | --close N] [--json FILE]

`--small` trains a perceptron instead, whose steps take 15 ms on a free core. Prints the share of the run that the
training thread spends inside unisono, measured in that run: over its first steps, which are all heard (100, or as many
as `--close` says), and over all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.common.schedule import DEFAULT, Schedule
from unisono.records import StepRecord
from unisono.records.runfile import read_run

WORKERS = 2
TOKENS, BATCH, VOCABULARY, WIDTH, LAYERS = 128, 8, 2048, 384, 5


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(TOKENS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(self.embedding(tokens) + self.position))
        return logits


class Perceptron(nn.Sequential):
    def __init__(self) -> None:
        hidden = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.GELU())]
        super().__init__(nn.Embedding(VOCABULARY, 512), *hidden, nn.Linear(512, VOCABULARY))


def train(options: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(made_model(options.small))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    monitor = unisono.attach(model, optimizer, run_dir=options.worker, schedule=chosen_schedule(options))
    torch.manual_seed(1 + dist.get_rank())
    shape = (2, 16) if options.small else (BATCH, TOKENS)
    for _ in range(options.steps):
        tokens = torch.randint(VOCABULARY, shape)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    monitor.close()
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


def made_model(small: bool) -> nn.Module:
    return Perceptron() if small else Transformer()


def chosen_schedule(options: argparse.Namespace) -> Schedule | None:
    if options.close is not None:
        return unisono.every(1).until(options.close).then(unisono.within_budget(0.005))
    return None if options.every is None else unisono.every(options.every)


def launch(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as run_dir:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
        command += [__file__, "--worker", run_dir, "--steps", str(options.steps)]
        command += ["--small"] * options.small
        command += [] if options.every is None else ["--every", str(options.every)]
        command += [] if options.close is None else ["--close", str(options.close)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return measured(read_run(run_dir).timeline(), options)


def measured(records: Sequence[StepRecord], options: argparse.Namespace) -> dict[str, float]:
    close = records[: options.close or DEFAULT.segments[0].end]
    seconds = sum(longest(record) for record in close)
    heard = sum(record.heard for record in close)
    return {
        "parameters": sum(parameter.numel() for parameter in made_model(options.small).parameters()),
        "steps": len(records),
        "heard": sum(record.heard for record in records),
        "milliseconds_per_step": 1000 * seconds / len(close),
        "milliseconds_per_reading": 1000 * seconds * (close[-1].listening_cost or 0) / heard,
        "closely_heard": len(close),
        "share_of_closely_heard_steps": close[-1].listening_cost or 0,
        "share_of_run": records[-1].listening_cost or 0,
    }


def longest(record: StepRecord) -> float:
    return max(seconds or 0 for seconds in record.step_W)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--short", action="store_true", help="20 steps: shows that it works, too short for a figure")
    parser.add_argument("--small", action="store_true", help="a perceptron with short steps")
    parser.add_argument("--every", type=int, help="listen to every Nth step instead of the default schedule")
    parser.add_argument("--close", type=int, help="listen to the first N steps, then within 0.5 %% of the step time")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    parser.add_argument("--worker", metavar="RUN_DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        train(options)
        return
    options.steps = 20 if options.short else options.steps
    result = launch(options)
    text = json.dumps({"command": " ".join(["python", *sys.argv]), "torch": str(torch.__version__), **result}, indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")
    close = result["closely_heard"]
    print(
        f"first {close} steps, all heard: {100 * result['share_of_closely_heard_steps']:.2f} % of the training thread"
    )
    print(f"all {result['steps']} steps: {100 * result['share_of_run']:.2f} %")


if __name__ == "__main__":
    main()
