"""Runs of real processes on this machine, with a fault or healthy, for whoever wants to read them. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unisono.lab.launching import follow, torchrun

HONEST = "honest"
FAULTY_JOB = Path(__file__).with_name("real_job.py")
HEALTHY_JOB = Path(__file__).with_name("healthy_job.py")


def run_real(name: str | None, workers: int, seeds: Sequence[int], folder: Path) -> list[Path]:
    """Trains with the fault (`None`: honestly) once per seed, one after another, and returns the runs' folders.

    Beside each of them, `<run>.<rank>.json` says how often the fault really happened on the rank, and to whom.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = name or HONEST
    command = torchrun(workers, FAULTY_JOB, name, str(folder), *map(str, seeds))
    follow(command, f"{name}: {workers} workers, run")
    return [folder / f"{name}-{seed}" for seed in seeds]


def healthy_steps(workers: int, steps: int, folder: Path, first: int = 0) -> list[Path]:
    """Trains three small models honestly, in several runs of `steps` steps in total, and returns the runs' folders.

    :param first: Number of the first run; it decides model and seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    follow(torchrun(workers, HEALTHY_JOB, str(folder), str(steps), str(first)), f"healthy: {workers} workers, step")
    return sorted(path.parent for path in folder.glob("*/run.jsonl"))
