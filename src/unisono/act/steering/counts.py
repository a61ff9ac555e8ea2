"""What was decided in one backward pass: the mean over its parts, each by its size. W = workers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unisono.listen.messages import Steered


class SteeredMean:
    def __init__(self, workers: int) -> None:
        self._size = 0
        self._weight_W = [0.0] * workers
        self._distance_W = [0.0] * workers

    @property
    def empty(self) -> bool:
        return self._size == 0

    def add(self, size: int, weight_W: Sequence[float], distance_W: Sequence[float]) -> None:
        """A part of `size` numbers. Weights that are nan, where nobody was finite, count as zero."""
        self._size += size
        for worker, (weight, distance) in enumerate(zip(weight_W, distance_W, strict=True)):
            self._weight_W[worker] += size * (0.0 if math.isnan(weight) else weight)
            self._distance_W[worker] += size * distance

    def result(self) -> Steered:
        return Steered(
            tuple(weight / self._size for weight in self._weight_W),
            tuple(distance / self._size for distance in self._distance_W),
        )
