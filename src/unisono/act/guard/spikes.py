"""What a number usually was of late, so that a spike can be told from an ordinary step.

Only accepted values count: spikes and what is not finite stay outside, so that the first of several extreme steps does
not make the next ones look normal. How far a series usually strays is measured on a logarithmic scale: the gradients of
a model that has nearly learnt everything are tiny at most steps, and a hundred times larger at some. That is healthy.
"""

from __future__ import annotations

import math
from collections import deque

from unisono.diagnose.statistics import median

WINDOW, LEAST = 64, 20
NEW_LEVEL = 20
"""So many spikes in a row are no spikes: the numbers live on another level now, and the history starts anew there."""

NORMAL = 1.4826
"""Standard deviations in a median distance to the median, of numbers that are normally distributed."""

DEVIATIONS = 3
"""Standard deviations above the median at which the usual ends."""

SMALL = 0.05
"""Distances are told in units of at least this share of the median and of the first one: a number that hardly moves
has hardly any deviation, and a loss near zero is still far below where it began."""

FARTHEST = 5
"""And of at least this part of the distance of the largest recent value."""


class UsualValues:
    """The last accepted values of a series."""

    def __init__(self, window: int = WINDOW, least: int = LEAST) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._least = least
        self._refused: deque[float] = deque(maxlen=NEW_LEVEL)
        self._first: float | None = None
        self._median: float | None = None
        self._end = self._unit = 0.0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def median(self) -> float | None:
        """`None` while too few values are known."""
        return self._median

    def ratio(self, value: float | None) -> float | None:
        """How many times the end of the usual range, which holds all recent values; `None` where that is not known."""
        if value is None or self._median is None or not math.isfinite(value) or self._end <= 0:
            return None
        return value / self._end

    def score(self, value: float | None) -> float | None:
        """How far above the median, in units of how far the values usually stray; `None` where that cannot be told."""
        if value is None or self._median is None or not math.isfinite(value):
            return None
        distance = value - self._median
        return distance / self._unit if self._unit > 0 else math.copysign(math.inf, distance) if distance else 0.0

    def accept(self, value: float | None) -> None:
        """An ordinary step's value. What is unknown or not finite is passed over."""
        if value is not None and math.isfinite(value):
            self._refused.clear()
            self._values.append(value)
            self._measure()

    def refuse(self, value: float | None) -> None:
        """A spike's value. It does not count, unless as many follow each other as make a new level."""
        if value is None or not math.isfinite(value):
            return
        self._refused.append(value)
        if len(self._refused) == NEW_LEVEL:
            self._values.clear()
            self._values.extend(self._refused)
            self._refused.clear()
            self._measure()

    def _measure(self) -> None:
        if len(self._values) < self._least:
            self._median = None
            return
        middle = median(self._values)
        self._median = middle
        self._first = middle if self._first is None else self._first
        end, largest = _end_of_usual(self._values, middle), max(self._values)
        # A model that leaves a plateau has gradients that grow a thousandfold in ten steps, each a little at a time.
        self._end = max(end, largest)
        self._unit = max(
            (end - middle) / DEVIATIONS,
            (largest - middle) / FARTHEST,
            SMALL * abs(middle),
            SMALL * abs(self._first),
        )


def _end_of_usual(values: deque[float], middle: float) -> float:
    if min(values) <= 0:
        return middle + DEVIATIONS * NORMAL * median([abs(value - middle) for value in values])
    distance = median([abs(math.log(value / middle)) for value in values])
    return middle * math.exp(DEVIATIONS * NORMAL * distance)
