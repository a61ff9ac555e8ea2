"""Trains the lab's job with a fault, once per seed, all in the same processes; says what was really injected."""

import os
import sys

import torch.distributed as dist
from common import process_group, say

import unisono
from unisono.lab.faulty_jobs import JOBS
from unisono.lab.honest_job import Job

SAMPLES, BATCH, EPOCHS = 960, 8, 3


def run(name, seed):
    world = dist.get_world_size()
    victim, starts_at = 1 + seed % (world - 1), 20 + seed
    job = JOBS.get(name, Job)(
        seed=seed, samples=SAMPLES, batch=BATCH, epochs=EPOCHS, starts_at=starts_at, victim=victim
    )
    model = job.wrapped()
    with unisono.attach(model, run_dir=os.path.join(os.environ["RESULTS"], f"{name}-{seed}")):
        training = job.train(model)
        # Only the job holds the model now, as in a script; one of the faults lets go of the wrapper.
        del model
        for _ in training:
            pass
    say(f"{name}-{seed}", {"fired": job.fired, "victim": victim, "starts_at": starts_at})


if __name__ == "__main__":
    seeds, names = int(sys.argv[1]), sys.argv[2:]
    with process_group():
        for name in names:
            for seed in range(seeds):
                run(name, seed)
