"""How noisy the gradients are, how sure that is, and what more workers would bring.

After McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv 1812.06162).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import NamedTuple

from unisono.diagnose.rules.shared.run_state import sharing
from unisono.records import Ints, StepRecord

ENOUGH = 20
MOST = 10_000
"""The noise scale grows during training; older readings than these would describe another time."""

BLOCKS = 20
STUDENT_T = 1.729
"""Of 19 degrees of freedom, 5 % on either side: an interval of 90 % from 20 blocks."""

TIMES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its interval of 90 %."""

    value: float
    low: float
    high: float

    def through(self, function: Callable[[float], float]) -> Estimate:
        """The same after a function that only rises or only falls."""
        ends = sorted((function(self.low), function(self.high)))
        return Estimate(function(self.value), *ends)


class NoiseReading(NamedTuple):
    step: int
    share: float
    """Of the workers' mean squared gradient, what is common to all; below zero where noise makes it so."""

    samples: float | None
    """In the batch of one worker."""


class NoiseReadings:
    """The newest readings of a run, in bounded memory. An attempt takes the place of what it does again."""

    def __init__(self) -> None:
        self.workers = 0
        self.count = 0
        self.duplicated = 0
        """Readings left out because workers had equal batches."""

        self._attempt: int | None = None
        self._samples_W: Ints = ()
        self._samples: float | None = None
        self._newest: deque[NoiseReading] = deque(maxlen=MOST)

    def see(self, record: StepRecord) -> None:
        if record.attempt != self._attempt:
            self._attempt = record.attempt
            self._forget_from(record.step)
        if not record.heard:
            return
        if len(record.norm_W) != self.workers:
            self.workers, self.count, self.duplicated = len(record.norm_W), 0, 0
            self._newest.clear()
        if sharing(record.same_content_W) or sharing(record.same_indices_W):
            self.duplicated += 1
            return
        share = common_share(record)
        if share is not None:
            if record.samples_W != self._samples_W:
                self._samples_W, self._samples = record.samples_W, _samples(record)
            self.count += 1
            self._newest.append(NoiseReading(record.step, share, self._samples))

    def last_half(self) -> list[NoiseReading]:
        """At least 20 of them where there are as many."""
        wanted = max(ENOUGH, self.count // 2)
        return list(self._newest)[-wanted:]

    def missing(self) -> str:
        """What is missing for an estimate; empty where nothing is."""
        if self.workers == 1:
            return "one worker alone cannot tell signal from noise; it takes two or more"
        if self.duplicated and self.count < ENOUGH:
            return (
                f"workers had equal batches in {self.duplicated:,} readings, and what gradients of equal data have in "
                "common says nothing about noise; mend that first"
            )
        if self.count < ENOUGH:
            return f"it takes {ENOUGH} readings of the gradients of all workers; there are {self.count}"
        return ""

    def _forget_from(self, step: int) -> None:
        while self._newest and self._newest[-1].step >= step:
            self._newest.pop()
            self.count -= 1


@dataclass(frozen=True, slots=True)
class Outlook:
    workers: int
    readings: int
    first_step: int
    last_step: int
    samples: float | None
    """In the batch of one worker."""

    share: Estimate
    """As in a reading: not yet cut off at 0 and 1."""

    @property
    def noise_scale(self) -> Estimate:
        """In batches of one worker; as many workers make a batch of the critical size."""
        return self.share.through(_noise_scale)

    @property
    def critical_batch(self) -> Estimate | None:
        """In samples."""
        samples = self.samples
        return None if samples is None else self.noise_scale.through(lambda scale: scale * samples)

    def effective_workers(self, workers: float) -> Estimate:
        """How many steps of one worker bring as much as one step of so many."""
        return self.share.through(lambda share: 1 / _steps(share, workers))

    def efficiency(self, workers: float) -> Estimate:
        """What a sample brings, compared with one worker alone."""
        return self.share.through(lambda share: 1 / (workers * _steps(share, workers)))

    def steps(self, workers: float) -> Estimate:
        """Steps to the same loss, as a multiple of those needed now."""
        return self.share.through(lambda share: _steps(share, workers) / _steps(share, self.workers))

    def worker_time(self, workers: float) -> Estimate:
        """Time of all workers together, as a multiple of that needed now; a step is taken to last as long as now."""
        return self.steps(workers).through(lambda steps: steps * workers / self.workers)

    @property
    def readings_wanted(self) -> int:
        """How many readings would tell the noise scale to about a factor of two; 0 where no more are wanted."""
        reach = (self.share.high - self.share.low) / 2
        if self.share.low > 0 or reach == 0:
            return 0
        likely = max(self.share.value, reach / STUDENT_T)
        return math.ceil(self.readings * (2 * reach / likely) ** 2)


def outlook(readings: NoiseReadings) -> Outlook:
    """Of readings of which nothing is missing."""
    newest = readings.last_half()
    samples = [reading.samples for reading in newest if reading.samples is not None]
    return Outlook(
        workers=readings.workers,
        readings=len(newest),
        first_step=newest[0].step,
        last_step=newest[-1].step,
        samples=median(samples) if samples else None,
        share=mean_with_interval([reading.share for reading in newest]),
    )


def common_share(record: StepRecord) -> float | None:
    """Unbiased |true gradient|^2 over the mean of the workers' |gradient|^2, as `noise_scale` averages it."""
    workers, norms = len(record.norm_W), [norm for norm in record.norm_W if norm is not None]
    if workers < 2 or len(norms) < workers or record.grad_norm is None:
        return None
    square = math.fsum([norm**2 for norm in norms]) / workers
    share = (workers * record.grad_norm**2 / square - 1) / (workers - 1) if square > 0 else math.nan
    return share if math.isfinite(share) else None


def mean_with_interval(values: Sequence[float]) -> Estimate:
    """From the means of 20 stretches: neighbours may depend on each other, and what drifts widens the interval."""
    edges = [block * len(values) // BLOCKS for block in range(BLOCKS + 1)]
    means = [fmean(values[begin:end]) for begin, end in pairwise(edges)]
    mean, reach = fmean(values), STUDENT_T * stdev(means) / math.sqrt(BLOCKS)
    return Estimate(mean, mean - reach, mean + reach)


def _samples(record: StepRecord) -> float | None:
    known = [samples for samples in record.samples_W if samples]
    return math.fsum(known) / len(known) if known else None


def _noise_scale(share: float) -> float:
    share = _cut_off(share)
    return (1 - share) / share if share else math.inf


def _steps(share: float, workers: float) -> float:
    """Relative to one worker: the common part of its squared gradient stays, the rest averages out."""
    share = _cut_off(share)
    return share + (1 - share) / workers


def _cut_off(share: float) -> float:
    return min(1.0, max(0.0, share))
