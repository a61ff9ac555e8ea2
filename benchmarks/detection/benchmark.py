"""All of the detection benchmark: virtual runs with faults, virtual healthy runs, real processes."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.detection.detect import detect
from benchmarks.detection.outcome import Outcome
from benchmarks.detection.plan_of_trials import fault_trials, healthy_trials
from benchmarks.detection.real_part import real_part
from benchmarks.detection.tally import Tally, fault_rows, healthy_rows

from unisono import __version__


@dataclass(frozen=True)
class Size:
    workers: tuple[int, ...]
    runs: int
    """Of each fault, setting and number of workers."""

    healthy_runs: int
    """Of each healthy setting and number of workers; thrice as many with the default schedule."""

    steps: int
    """Of each healthy run."""

    real_runs: int
    """Of each fault."""

    real_steps: int
    """Healthy ones, in all."""


SHORT = Size((4,), runs=1, healthy_runs=1, steps=700, real_runs=0, real_steps=2000)
LONG = Size((2, 4, 8), runs=5, healthy_runs=4, steps=4200, real_runs=5, real_steps=100_000)


def benchmark(
    command: str,
    size: Size,
    processes: int,
    only: str | None,
    kept: Path,
    records: Path | None = None,
    until: float = math.inf,
) -> Tally:
    """
    :param only: One part: `faults`, `healthy` or `real`.
    :param kept: Folder of outcomes: trials of which one lies there are done.
    :param records: Folder of the records of healthy virtual runs.
    :param until: No trial is begun after this time, as `time.monotonic()` has it.
    """
    parts: dict[str, Callable[[], list[Outcome]]] = {
        "faults": lambda: detect(fault_trials(size.runs, size.workers), processes, kept, until=until),
        "healthy": lambda: detect(
            healthy_trials(size.healthy_runs, size.workers, size.steps), processes, kept, records, until
        ),
        "real": lambda: real_part(size.real_runs, size.real_steps, processes, kept, until),
    }
    outcomes: list[Outcome] = []
    for name, part in parts.items():
        if only in (None, name):
            began = time.monotonic()
            sys.stderr.write(f"{name}: ")
            outcomes += part()
            sys.stderr.write(f" {time.monotonic() - began:.0f} s\n")
    versions = {"unisono": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return Tally(command, versions, fault_rows(outcomes), healthy_rows(outcomes))
