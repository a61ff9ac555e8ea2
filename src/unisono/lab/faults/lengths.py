"""How long a job has to train until a fault in it can be found."""

from __future__ import annotations

from dataclasses import dataclass, replace

from unisono.lab.faults.catalogue import STATISTICAL


@dataclass(frozen=True)
class Length:
    steps: int
    starts_at: int
    samples: int
    batch: int

    def epochs(self, workers: int) -> int:
        return max(1, round(self.steps * self.batch * workers / self.samples))


USUAL = Length(steps=512, starts_at=60, samples=8192, batch=16)
"""Statistics need healthy steps first, and more of them after the fault began."""

OWN = {
    "gradient-x1.1": replace(USUAL, steps=1024),
    "deep-post-ln": replace(USUAL, steps=640),
    "learning-rate-too-high": replace(USUAL, steps=640, starts_at=240),  # so that there is something to forget
    "underflow": replace(USUAL, batch=64),  # a mean of more samples is smaller
}
EXACT = Length(steps=90, starts_at=20, samples=960, batch=8)
EXACT_IN_DEMO = Length(steps=192, starts_at=60, samples=4096, batch=16)
"""Longer than necessary: there is something to see in the curves."""


def length_of(name: str) -> Length:
    return OWN.get(name, USUAL) if name in STATISTICAL else EXACT


def length_in_demo(name: str) -> Length:
    return length_of(name) if name in STATISTICAL else EXACT_IN_DEMO
