"""Trains the lab's job with a fault, once per seed, all in the same processes; says what was really injected."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch.distributed as dist

import unisono
from unisono.common.schedule import every
from unisono.lab.faults.faulty_jobs import JOBS
from unisono.lab.faults.honest_job import process_group, say_progress
from unisono.lab.faults.lengths import length_of


def train(name: str, seed: int, folder: Path) -> None:
    world, length = dist.get_world_size(), length_of(name)
    victim, starts_at = 1 + seed % (world - 1), length.starts_at + seed
    job = JOBS[name](
        seed=seed,
        samples=length.samples,
        batch=length.batch,
        epochs=length.epochs(world),
        starts_at=starts_at,
        victim=victim,
    )
    model = job.wrapped()
    with unisono.attach(model, run_dir=folder / f"{name}-{seed}", schedule=every(1)):
        training = job.train(model)
        # Only the job holds the model now, as in a script; one of the faults lets go of the wrapper.
        del model
        for _ in training:
            pass
    said = {"fired": job.fired, "victim": victim, "starts_at": starts_at}
    (folder / f"{name}-{seed}.{dist.get_rank()}.json").write_text(json.dumps(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=JOBS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    args = parser.parse_args()
    with process_group():
        for done, seed in enumerate(args.seeds, 1):
            train(args.name, seed, args.folder)
            say_progress(done, len(args.seeds))


if __name__ == "__main__":
    main()
