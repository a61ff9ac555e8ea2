"""Trains the task with several ranks, listened to at every step.

`noise_job.py RUN_DIR BATCH RATE SEED STEPS [DATA]`
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.lab.experiments.critical_batch.plan import REAL, SMALL
from unisono.lab.experiments.critical_batch.task import CharacterTask, generated_text, read_text
from unisono.lab.faults.honest_job import process_group, say_progress

SAYS_EVERY = 100


def train(task: CharacterTask, run_dir: str, batch: int, rate: float, seed: int, steps: int) -> None:
    """Each rank draws its own share of the batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(task.model(seed))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    generator = torch.Generator().manual_seed(10_000 * (seed + 1) + rank)
    with unisono.attach(model, optimizer, run_dir=run_dir, schedule=unisono.every(1)):
        for step in range(1, steps + 1):
            inputs_BC, targets_B = task.batch(batch // world, generator)
            optimizer.zero_grad()
            cross_entropy(model(inputs_BC), targets_B).backward()
            optimizer.step()
            if step % SAYS_EVERY == 0 or step == steps:
                say_progress(step, steps)


def main() -> None:
    run_dir, batch, rate, seed, steps, *data = sys.argv[1:]
    text = read_text(Path(data[0])) if data else generated_text()
    task = CharacterTask(text, (REAL if data else SMALL).target)
    with process_group():
        train(task, run_dir, int(batch), float(rate), int(seed), int(steps))


if __name__ == "__main__":
    main()
