"""What listening costs on CPU: a 10 M-parameter transformer, two processes, 1,024 tokens a step.

    python benchmarks/listening_cost.py [--steps 1200 | --short] [--every N] [--json FILE]

Prints the share of the run that the training thread spends inside unisono, measured in that run: over its first 500
steps, which are all heard, and over all of it.
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


def train(steps: int, every: int | None, run_dir: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(Transformer())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    schedule = None if every is None else unisono.every(every)
    monitor = unisono.attach(model, optimizer, run_dir=run_dir, schedule=schedule)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (BATCH, TOKENS))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    monitor.close()
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


def launch(steps: int, every: int | None) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as run_dir:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
        command += [__file__, "--worker", run_dir, "--steps", str(steps)]
        command += [] if every is None else ["--every", str(every)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return measured(read_run(run_dir).timeline())


def measured(records: Sequence[StepRecord]) -> dict[str, float]:
    close = records[:500]
    seconds = sum(longest(record) for record in close)
    heard = sum(record.heard for record in close)
    return {
        "parameters": sum(parameter.numel() for parameter in Transformer().parameters()),
        "steps": len(records),
        "heard": sum(record.heard for record in records),
        "milliseconds_per_step": 1000 * seconds / len(close),
        "milliseconds_per_reading": 1000 * seconds * (close[-1].listening_cost or 0) / heard,
        "share_of_first_500_steps": close[-1].listening_cost or 0,
        "share_of_run": records[-1].listening_cost or 0,
    }


def longest(record: StepRecord) -> float:
    return max(seconds or 0 for seconds in record.step_W)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--short", action="store_true", help="20 steps: shows that it works, too short for a figure")
    parser.add_argument("--every", type=int, help="listen to every Nth step instead of the default schedule")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    parser.add_argument("--worker", metavar="RUN_DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        train(options.steps, options.every, options.worker)
        return
    result = launch(20 if options.short else options.steps, options.every)
    text = json.dumps({"command": " ".join(["python", *sys.argv]), "torch": str(torch.__version__), **result}, indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")
    print(f"listening at every step: {100 * result['share_of_first_500_steps']:.2f} % of the training thread's time")
    if result["steps"] > 500:
        print(f"default schedule over {result['steps']} steps: {100 * result['share_of_run']:.2f} %")


if __name__ == "__main__":
    main()
