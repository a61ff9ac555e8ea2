"""Which runs the detection benchmark makes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.detection.setting import EVERY_STEP, OF_A_FAULT, USUAL, Setting, healthy

from unisono.common.schedule import DEFAULT
from unisono.lab.faults.catalogue import STATISTICAL

STARTS_AT, STARTS_RARELY_HEARD = 300, (200, 700)
"""First step of a fault; with the default schedule where every 10th step is heard, and where every 20th is."""

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
        if self.setting.schedule == EVERY_STEP:
            return "every step"
        return f"default, from step {self.starts_at}" if self.fault else "default"

    @property
    def slug(self) -> str:
        what = "-".join((self.fault or "healthy", self.name, f"{self.setting.workers}", self.schedule, f"{self.seed}"))
        return what.replace(",", "").replace(" ", "-")

    @property
    def work(self) -> int:
        return self.setting.steps * len(self.victims) * self.setting.workers


def fault_trials(runs: int, worker_numbers: Sequence[int]) -> Iterator[Trial]:
    for number, fault in enumerate(STATISTICAL):
        for name, setting in _settings(fault).items():
            for workers in worker_numbers:
                yield _trial(fault, name, replace(setting, workers=workers), STARTS_AT, runs, 1000 + number)
        if fault in LATE:
            for nth, begin in enumerate(STARTS_RARELY_HEARD, 2):
                for name, setting in _settings(fault).items():
                    yield _trial(fault, name, replace(setting, schedule=DEFAULT), begin, runs, 1000 * nth + number)


def _settings(fault: str) -> dict[str, Setting]:
    return OF_A_FAULT.get(fault, USUAL)


def _trial(fault: str, name: str, setting: Setting, starts_at: int, runs: int, seed: int) -> Trial:
    begin = starts_at if STATISTICAL[fault].late else 0
    steps = begin + (AFTER.get(fault, AFTER_OTHERS) if setting.schedule == EVERY_STEP else AFTER_LATE)
    victims = random.Random(seed).choices(range(setting.workers), k=runs)
    return Trial(fault, name, replace(setting, steps=steps), tuple(victims), begin, seed)


def healthy_trials(runs: int, worker_numbers: Sequence[int], steps: int) -> Iterator[Trial]:
    """`runs` runs of every healthy setting and number of workers with every step heard, thrice as many by default."""
    for number, (name, setting) in enumerate(healthy(steps).items()):
        for workers in worker_numbers:
            for schedule, times in ((EVERY_STEP, 1), (DEFAULT, 3)):
                own = replace(setting, workers=workers, schedule=schedule)
                yield Trial("", name, own, (0,) * times * runs, steps, 1000 * times + 100 * workers + number)
