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

FULL = 2 * LIMIT
"""Sums grow no further, so that a fault that is over is soon forgotten."""

HARD = 10.0
HARD_READINGS = 3
"""So many scores above `HARD` in a row need no sum."""

LEARNT = 16
"""Readings before the first score."""

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

    The unit of a score is the usual size of a gap, over all workers and the last readings, but not less than `least`,
    the smallest gap that matters at all.
    """

    RECENT = 32
    ALIKE = 1.0
    """How far the others may lie apart, in units of their noise from reading to reading."""

    def __init__(self, workers: int, least: float, sudden: bool = True) -> None:
        """
        :param sudden: Whether a few readings far off in a row are enough; not so where a gap is all or nothing.
        """
        self.workers = workers
        self.least = least
        self._hard_readings = HARD_READINGS if sudden else math.inf
        self.readings = 0
        self._high_W = [0.0] * workers
        self._low_W = [0.0] * workers
        self._hard_W = [0] * workers
        self.alarmed = False
        """Some worker's scores are beyond a limit; whether they are worth a word, `apart` says."""

        self._gap_TW: deque[list[float]] = deque(maxlen=self.RECENT)
        self._sizes = Window(128)

    @property
    def ready(self) -> bool:
        return self.readings >= LEARNT

    def add(self, value_W: Sequence[float]) -> None:
        gap_W = gaps_to_others(value_W)
        self._gap_TW.append(gap_W)
        if self.ready:
            self._score(gap_W, max(self._sizes.median * NORMAL, self.least))
        # One worker a reading, in turn: gaps of one reading hang together, and a faulty worker must not set the unit.
        self._sizes.add(abs(gap_W[self.readings % self.workers]))
        self.readings += 1

    def _score(self, gap_W: list[float], unit: float) -> None:
        high_W, low_W, hard_W = self._high_W, self._low_W, self._hard_W
        alarmed = False
        for worker, gap in enumerate(gap_W):
            score = gap / unit
            capped = CAP if score > CAP else -CAP if score < -CAP else score
            high, low = high_W[worker] + capped - SLACK, low_W[worker] - capped - SLACK
            high_W[worker] = 0.0 if high < 0 else high if high < FULL else FULL
            low_W[worker] = 0.0 if low < 0 else low if low < FULL else FULL
            hard_W[worker] = hard_W[worker] + 1 if score > HARD or score < -HARD else 0
            alarmed = alarmed or high > LIMIT or low > LIMIT or hard_W[worker] >= self._hard_readings
        self.alarmed = alarmed

    def total(self, worker: int) -> float:
        return max(self._high_W[worker], self._low_W[worker])

    def level(self, worker: int) -> float:
        """The worker's usual gap of late."""
        just_now = self._is_hard(worker) and self.total(worker) <= LIMIT
        return median(self._gaps(worker)[-HARD_READINGS:] if just_now else self._gaps(worker))

    def _gaps(self, worker: int) -> list[float]:
        return [gap_W[worker] for gap_W in self._gap_TW]

    def apart(self) -> list[int]:
        """All workers that stay apart."""
        if not self.alarmed:
            return []
        return [w for w in range(self.workers) if self._is_apart(w) and abs(self.level(w)) >= self.least]

    def outlier(self) -> int | None:
        """The one worker that stays apart from others that are alike; with two workers, either of them."""
        apart = self.apart()
        if not apart:
            return None
        worst = max(apart, key=lambda worker: abs(self.level(worker)))
        others = [worker for worker in range(self.workers) if worker != worst]
        # The others are pulled to the opposite side; a second one on the same side is another fault.
        sums_W = self._high_W if self.level(worst) > 0 else self._low_W
        alone = all(sums_W[worker] <= LIMIT / 2 for worker in others)
        return worst if len(others) == 1 or (alone and self._alike(others)) else None

    def _is_apart(self, worker: int) -> bool:
        return self.total(worker) > LIMIT or self._is_hard(worker)

    def _is_hard(self, worker: int) -> bool:
        return self._hard_W[worker] >= self._hard_readings

    def _alike(self, workers: Sequence[int]) -> bool:
        """The workers differ by no more than their noise: not so where everybody repeats a batch of its own."""
        gaps = [self._gaps(worker) for worker in workers]
        return scatter([median(own) for own in gaps]) <= self.ALIKE * median([_noise(own) for own in gaps])


def median(values: Sequence[float] | deque[float]) -> float:
    return _middle(sorted(values))


def scatter(values: Sequence[float]) -> float:
    """Standard deviation, from the median distance to the median."""
    middle = median(values)
    return NORMAL * median([abs(value - middle) for value in values])


def medians_of_others(value_W: Sequence[float]) -> list[float]:
    """For each worker the median of all the others' values."""
    ordered = sorted(value_W)
    low, high = (len(ordered) - 2) // 2, (len(ordered) - 1) // 2
    # Without a value from the lower part all later ones move down by one place; equal values are interchangeable.
    without_low = (ordered[low + 1] + ordered[high + 1]) / 2
    without_middle = (ordered[low] + ordered[high + 1]) / 2
    without_high = (ordered[low] + ordered[high]) / 2
    return [
        without_low if value <= ordered[low] else without_middle if value <= ordered[high] else without_high
        for value in value_W
    ]


def gaps_to_others(value_W: Sequence[float]) -> list[float]:
    return [value - others for value, others in zip(value_W, medians_of_others(value_W), strict=True)]


def _middle(ordered: Sequence[float]) -> float:
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _noise(values: Sequence[float] | deque[float]) -> float:
    """Standard deviation of the change from one value to the next, as for independent ones around a fixed level."""
    return median([abs(later - earlier) for earlier, later in pairwise(values)]) / 0.954
