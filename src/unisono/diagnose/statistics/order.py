"""The newest numbers of a series and their order: medians, scatter, gaps between workers. W = workers."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

NORMAL = 1.4826
"""Standard deviation of normal numbers, in units of the median distance from their median."""


class Window:
    """The last `size` numbers and their order statistics."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    @property
    def full(self) -> bool:
        return len(self._values) == self.size

    def add(self, value: float) -> None:
        values, ordered = self._values, self._sorted
        if len(values) == self.size:
            del ordered[bisect_left(ordered, values.popleft())]
        values.append(value)
        insort(ordered, value)

    @property
    def median(self) -> float:
        ordered, count = self._sorted, len(self._sorted)
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2

    @property
    def largest(self) -> float:
        return self._sorted[-1]

    @property
    def deviation(self) -> float:
        """Standard deviation as the middle half of the numbers suggests: up to a quarter may be anything."""
        count = len(self._sorted)
        return (self._sorted[(3 * count) // 4] - self._sorted[count // 4]) / 1.349


class Blocks:
    """Medians of consecutive blocks of `size` numbers, the newest `count` of them."""

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self._block: list[float] = []
        self.medians: deque[float] = deque(maxlen=count)

    @property
    def full(self) -> bool:
        return len(self.medians) == self.medians.maxlen

    def add(self, value: float) -> bool:
        """Whether this number completed a block."""
        self._block.append(value)
        if len(self._block) < self.size:
            return False
        self.medians.append(median(self._block))
        self._block.clear()
        return True

    @property
    def growth(self) -> float:
        """The last median as a multiple of the first."""
        return self.medians[-1] / self.medians[0] if self.medians[0] > 0 else math.nan

    @property
    def rising(self) -> bool:
        """Every median is above the one before."""
        return all(later > earlier for earlier, later in pairwise(self.medians))

    @property
    def falling(self) -> bool:
        return all(later < earlier for earlier, later in pairwise(self.medians))


def median(values: Sequence[float] | deque[float]) -> float:
    return _middle(sorted(values))


def scatter(values: Sequence[float]) -> float:
    """Standard deviation, from the median distance to the median."""
    middle = median(values)
    return NORMAL * median([abs(value - middle) for value in values])


def median_of_others(value_W: Sequence[float], worker: int) -> float:
    """The median of the values of all but one worker."""
    return median([*value_W[:worker], *value_W[worker + 1 :]])


def gaps_to_others(value_W: Sequence[float]) -> list[float]:
    """For each worker the distance from the median of all the others' values."""
    ordered = sorted(value_W)
    low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    lower, upper, below, above = ordered[low], ordered[high], ordered[low + 1], ordered[high + 1]
    # Without a value from the lower part all later ones move down by one place; equal values are interchangeable.
    without_low, without_middle, without_high = (below + above) / 2, (lower + above) / 2, (lower + upper) / 2
    return [
        value - (without_low if value <= lower else without_middle if value <= upper else without_high)
        for value in value_W
    ]


def _middle(ordered: Sequence[float]) -> float:
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
