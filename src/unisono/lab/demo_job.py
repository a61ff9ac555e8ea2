"""The script that `unisono demo` trains, honestly or with a fault: plain torch, with no line about unisono."""

from __future__ import annotations

import argparse
import gc
import sys

import torch
import torch.distributed as dist

from unisono.lab.faulty_jobs import JOBS
from unisono.lab.honest_job import Job

LATE_FAULTS_BEGIN = 60


def train(fault: str | None) -> None:
    job = (JOBS[fault] if fault else Job)(starts_at=LATE_FAULTS_BEGIN)
    for step, steps in job.train(job.wrapped()):
        if dist.get_rank() == 0 and (step % 16 == 0 or step == steps):
            sys.stdout.write(f"{step}/{steps}\n")
            sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=JOBS)
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(fault)
    dist.barrier()
    # The model has to be gone before the group: gloo's tear-down deadlocks otherwise.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
