"""Which runs the detection benchmark makes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.detection.setting import EVERY_STEP, OF_A_FAULT, USUAL, Setting, healthy

from unisono.common.schedule import DEFAULT
from unisono.lab.faults.catalogue import STATISTICAL

STARTS_AT, STARTS_LATE = 300, 700
"""First step of a fault; with the default schedule it comes after the closely heard first 500 steps."""

AFTER = {"gradient-x1.1": 1300, "sign-flip": 500}
AFTER_OTHERS = 300
AFTER_LATE = 5000
LATE = ("gradient-x1.3", "gradient-x2", "sign-flip", "wrong-labels-50")
"""Faults that are also tried with the default schedule."""


@dataclass(frozen=True)
class Trial:
    """A few virtual runs in lock-step, with one fault or none."""

    fault: str
    name: str
    """Of the setting."""

    setting: Setting
    victims: tuple[int, ...]
    """One run each."""

    starts_at: int
    seed: int

    @property
    def schedule(self) -> str:
        return "every step" if self.setting.schedule == EVERY_STEP else "default"

    @property
    def work(self) -> int:
        return self.setting.steps * len(self.victims) * self.setting.workers


def fault_trials(runs: int, worker_numbers: Sequence[int]) -> Iterator[Trial]:
    for number, fault in enumerate(STATISTICAL):
        for name, setting in _settings(fault).items():
            for workers in worker_numbers:
                yield _trial(fault, name, replace(setting, workers=workers), runs, 1000 + number)
        if fault in LATE:
            for name, setting in _settings(fault).items():
                yield _trial(fault, name, replace(setting, schedule=DEFAULT), runs, 2000 + number)


def _settings(fault: str) -> dict[str, Setting]:
    return OF_A_FAULT.get(fault, USUAL)


def _trial(fault: str, name: str, setting: Setting, runs: int, seed: int) -> Trial:
    every_step = setting.schedule == EVERY_STEP
    begin = (STARTS_AT if every_step else STARTS_LATE) if STATISTICAL[fault].late else 0
    steps = begin + (AFTER.get(fault, AFTER_OTHERS) if every_step else AFTER_LATE)
    victims = random.Random(seed).choices(range(setting.workers), k=runs)
    return Trial(fault, name, replace(setting, steps=steps), tuple(victims), begin, seed)


def healthy_trials(runs: int, worker_numbers: Sequence[int], steps: int) -> Iterator[Trial]:
    """`runs` runs of every healthy setting and number of workers with every step heard, thrice as many by default."""
    for number, (name, setting) in enumerate(healthy(steps).items()):
        for workers in worker_numbers:
            for schedule, times in ((EVERY_STEP, 1), (DEFAULT, 3)):
                own = replace(setting, workers=workers, schedule=schedule)
                yield Trial("", name, own, (0,) * times * runs, steps, 1000 * times + 100 * workers + number)
