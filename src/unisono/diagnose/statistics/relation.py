"""What one signal of a worker says about another: a batch with a large loss also has a long gradient.

W = workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from unisono.diagnose.statistics.order import gaps_to_others

EVERY, FORGETS = 3, 0.97
"""Readings from one lesson to the next, and the weight of the past then."""

MOST = 3.0
"""Gaps count no more than this (a factor of twenty, for logarithms)."""

STEEPEST = 1.5


class Relation:
    """The slope of the workers' gaps in one signal over their gaps in another, from the last hundred readings."""

    def __init__(self) -> None:
        self._products = self._squares = 0.0
        self._readings = 0

    @property
    def slope(self) -> float:
        return min(STEEPEST, max(0.0, self._products / self._squares)) if self._squares > 0 else 0.0

    def rest(self, value_W: Sequence[float], known_W: Sequence[float]) -> list[float]:
        """The part of the values that the known ones do not explain, as far as was learnt before this reading."""
        slope = self.slope
        if self._readings % EVERY == 0:
            self._learn(gaps_to_others(value_W), gaps_to_others(known_W))
        self._readings += 1
        return [value - slope * known for value, known in zip(value_W, known_W, strict=False)]

    def _learn(self, gap_W: Sequence[float], known_W: Sequence[float]) -> None:
        gap_W, known_W = _clipped(gap_W), _clipped(known_W)
        self._products = FORGETS * self._products + sum(map(mul, known_W, gap_W))
        self._squares = FORGETS * self._squares + sum(map(mul, known_W, known_W))


def _clipped(gap_W: Sequence[float]) -> Sequence[float]:
    if min(gap_W) >= -MOST and max(gap_W) <= MOST:
        return gap_W
    return [min(MOST, max(-MOST, gap)) for gap in gap_W]
