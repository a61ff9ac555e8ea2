"""Whether the workers' samples can be different ones, from gradients and losses alone. W = workers."""

from __future__ import annotations

import math
from collections import deque

from unisono.diagnose.statistics import median
from unisono.records import StepRecord

FIRST = 32
"""Readings at the start, when gradients agree on any data."""

IN_A_ROW = 32
LOSSES = 48
ONE_SAMPLE = 1.0
"""Noise scale in samples. Below it two single samples would agree on most of the gradient: copies do, others do not."""

COMMON = 0.9
"""Share of the gradient that is common to all workers."""

TOGETHER = 0.3
"""Spread of the losses across workers, as a multiple of how far their mean goes from batch to batch.

It is sqrt(W) for different samples, however many of them there are: both shrink alike as batches grow."""

APART = 0.6
"""From here on the workers' samples differ after all."""

SECOND_DIFFERENCE = 0.6745 * math.sqrt(6)
"""Median size of the second difference of normal numbers of standard deviation 1."""


class NearDuplicates:
    """Two things together: gradients agree more than batches of this size can, and losses rise and fall together."""

    def __init__(self) -> None:
        self._readings = self._agreed = 0
        self._last: deque[tuple[int, float]] = deque(maxlen=3)
        self._bends: deque[float] = deque(maxlen=LOSSES)
        self._spreads: deque[float] = deque(maxlen=LOSSES)
        self.found = False
        self.noise_scale = math.inf
        """In samples."""

        self.spread = math.inf
        """Of the losses across workers, as a multiple of how far their mean goes from batch to batch."""

    @property
    def agree(self) -> bool:
        """The gradients agree more than batches of this size can."""
        return self._agreed >= IN_A_ROW

    def hear(self, record: StepRecord) -> bool:
        """Whether there was something to judge."""
        self._hear_losses(record)
        sizes = [samples for samples in record.samples_W if samples]
        if record.noise_scale is None or record.cos_expected is None or not sizes:
            return False
        self._readings += 1
        self.noise_scale = record.noise_scale * sum(sizes) / len(sizes)
        alike = self.noise_scale < ONE_SAMPLE and record.cos_expected > COMMON
        self._agreed = self._agreed + 1 if alike and self._readings > FIRST else 0
        if self._readings < FIRST + IN_A_ROW or len(self._bends) < LOSSES:
            return False
        wander = median(self._bends) / SECOND_DIFFERENCE
        self.spread = median(self._spreads) / wander if wander > 0 else math.inf
        self.found = self.agree and self.spread < (APART if self.found else TOGETHER)
        return True

    def _hear_losses(self, record: StepRecord) -> None:
        workers = len(record.loss_W)
        if record.loss_mean is None or record.loss_std is None or workers < 2:
            return
        self._last.append((record.step, record.loss_mean))
        (first, before), (_, middle), (last, now) = self._last if len(self._last) == 3 else ((0, 0.0),) * 3
        if last - first != 2:
            return
        # What is left of a smooth fall is far smaller than what one batch adds to the loss and the next takes away.
        self._bends.append(abs(now - 2 * middle + before))
        self._spreads.append(record.loss_std * math.sqrt(workers / (workers - 1)))
