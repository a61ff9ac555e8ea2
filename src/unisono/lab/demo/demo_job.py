"""The script that `unisono demo` trains, honestly or with a fault: plain torch, with no line about unisono."""

from __future__ import annotations

import argparse

import torch.distributed as dist

from unisono.lab.faults.faulty_jobs import JOBS
from unisono.lab.faults.honest_job import Job, process_group, say_progress
from unisono.lab.faults.lengths import length_in_demo

SAYS_EVERY = 16


def train(fault: str, healthy: bool) -> None:
    length = length_in_demo(fault)
    job = (Job if healthy else JOBS[fault])(
        samples=length.samples,
        batch=length.batch,
        epochs=length.epochs(dist.get_world_size()),
        starts_at=length.starts_at,
    )
    for step, steps in job.train(job.wrapped()):
        if step % SAYS_EVERY == 0 or step == steps:
            say_progress(step, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fault", choices=JOBS)
    parser.add_argument("--healthy", action="store_true", help="as long as with the fault, and without it")
    args = parser.parse_args()
    with process_group():
        train(args.fault, args.healthy)


if __name__ == "__main__":
    main()
