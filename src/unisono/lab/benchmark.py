"""All of the detection benchmark: virtual runs with faults, virtual healthy runs, real processes."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable

import torch

from unisono import __version__
from unisono.lab.detect import detect
from unisono.lab.outcome import Outcome
from unisono.lab.plan_of_trials import fault_trials, healthy_trials
from unisono.lab.tally import Tally, fault_rows, healthy_rows


def benchmark(command: str, size: tuple[int, int, int], processes: int, only: str | None) -> Tally:
    """
    :param size: Runs of each fault, setting and number of workers; of each healthy setting, number of workers and
        schedule; steps of each healthy run.
    :param only: One part: `faults`, `healthy` or `real`.
    """
    runs, healthy_runs, steps = size
    parts: dict[str, Callable[[], list[Outcome]]] = {
        "faults": lambda: detect(fault_trials(runs), processes),
        "healthy": lambda: detect(healthy_trials(healthy_runs, steps), processes),
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
