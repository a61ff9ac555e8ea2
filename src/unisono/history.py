"""What is usual in a run, and what is not: windows, blocks, scores against peers; bounded memory, however long it runs.

W = workers.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

CAP = 4.0
SLACK = 0.5
LIMIT = 60.0
"""Scores against peers are capped, lessened by the slack and summed up to the limit."""

HARD = 10.0
HARD_READINGS = 3
"""So many scores above `HARD` in a row need no sum."""

LEARNT = 16
"""Readings before the first score."""


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
        if self.full:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)

    @property
    def median(self) -> float:
        return _middle(self._sorted)

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


class Peers:
    """Who stays apart from the others: each worker's gap to the median of the others, scored and summed.

    The unit of a score is the usual size of a gap, over all workers and the last readings; a gap has to be at least
    `least` to matter at all.
    """

    RECENT = 32
    ALIKE = 0.75
    """How far the others may lie apart, in units of their noise from reading to reading."""

    def __init__(self, workers: int, least: float) -> None:
        self.least = least
        self.readings = 0
        self.gap_W = [0.0] * workers
        self.score_W = [0.0] * workers
        self._high_W = [0.0] * workers
        self._low_W = [0.0] * workers
        self._hard_W = [0] * workers
        self._recent_W: list[deque[float]] = [deque(maxlen=self.RECENT) for _ in range(workers)]
        self._sizes = Window(128)

    def add(self, value_W: Sequence[float]) -> None:
        self.gap_W = [value - others for value, others in zip(value_W, medians_of_others(value_W), strict=True)]
        for recent, gap in zip(self._recent_W, self.gap_W, strict=True):
            recent.append(gap)
        if self.ready:
            self._score(max(self._sizes.median * 1.4826, self.least / CAP))
        # One worker a reading, in turn: gaps of one reading hang together, and a faulty worker must not set the unit.
        self._sizes.add(abs(self.gap_W[self.readings % len(self.gap_W)]))
        self.readings += 1

    def _score(self, unit: float) -> None:
        for worker, gap in enumerate(self.gap_W):
            score = self.score_W[worker] = gap / unit
            capped = min(CAP, max(-CAP, score))
            self._high_W[worker] = min(2 * LIMIT, max(0.0, self._high_W[worker] + capped - SLACK))
            self._low_W[worker] = min(2 * LIMIT, max(0.0, self._low_W[worker] - capped - SLACK))
            self._hard_W[worker] = self._hard_W[worker] + 1 if abs(score) > HARD else 0

    @property
    def ready(self) -> bool:
        return self.readings >= LEARNT

    def total(self, worker: int) -> float:
        return max(self._high_W[worker], self._low_W[worker])

    def level(self, worker: int) -> float:
        """The worker's usual gap of late."""
        return median(self._recent_W[worker])

    def apart(self) -> list[int]:
        """All workers that stay apart."""
        return [w for w in range(len(self.gap_W)) if self._is_apart(w) and abs(self.level(w)) >= self.least]

    def outlier(self) -> int | None:
        """The one worker that stays apart from others that are alike; with two workers, either of them."""
        apart = self.apart()
        if not apart:
            return None
        worst = max(apart, key=lambda worker: (self.total(worker), abs(self.level(worker))))
        others = [worker for worker in range(len(self.gap_W)) if worker != worst]
        # The others are pulled to the opposite side; a second one on the same side is another fault.
        sums_W = self._high_W if self.level(worst) > 0 else self._low_W
        alone = all(sums_W[worker] <= LIMIT / 2 for worker in others)
        return worst if len(others) == 1 or (alone and self._alike(others)) else None

    def _is_apart(self, worker: int) -> bool:
        return self.total(worker) > LIMIT or self._hard_W[worker] >= HARD_READINGS

    def _alike(self, workers: Sequence[int]) -> bool:
        """The workers differ by no more than their noise: not so where everybody repeats a batch of its own."""
        levels = [self.level(worker) for worker in workers]
        middle = median(levels)
        apart = 1.4826 * median([abs(level - middle) for level in levels])
        return apart <= self.ALIKE * median([_noise(self._recent_W[worker]) for worker in workers])


def median(values: Sequence[float] | deque[float]) -> float:
    return _middle(sorted(values))


def medians_of_others(value_W: Sequence[float]) -> list[float]:
    """For each worker the median of all the others' values."""
    order = sorted(range(len(value_W)), key=value_W.__getitem__)
    ordered = [value_W[worker] for worker in order]
    others_W = [0.0] * len(order)
    left = len(order) - 1
    for place, worker in enumerate(order):
        low, high = (left - 1) // 2, left // 2
        others_W[worker] = (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
    return others_W


def _middle(ordered: Sequence[float]) -> float:
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _noise(values: Sequence[float] | deque[float]) -> float:
    """Standard deviation of the change from one value to the next, as for independent ones around a fixed level."""
    return median([abs(later - earlier) for earlier, later in pairwise(values)]) / 0.954
