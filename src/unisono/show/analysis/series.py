"""A long series in bounded memory, and as a line of little bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from unisono.records.json_codec import MOST

BARS = "▁▂▃▄▅▆▇█"


class Series:
    """Keeps at most `size` means over equally long stretches; the stretches double when it is full."""

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._stretch = 1
        self._means: list[float] = []
        self._sum = 0.0
        self._count = 0

    def add(self, number: float | None) -> None:
        if number is None or not abs(number) < MOST:
            return
        self._sum += number
        self._count += 1
        if self._count == self._stretch:
            self._means.append(self._sum / self._count)
            self._sum, self._count = 0.0, 0
        if len(self._means) == self._size:
            self._means = [(one + other) / 2 for one, other in zip(self._means[::2], self._means[1::2], strict=True)]
            self._stretch *= 2

    @property
    def values(self) -> list[float]:
        rest = [self._sum / self._count] if self._count else []
        return self._means + rest


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """`width` bars between the smallest and the largest mean; empty without values."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [math.fsum(values[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)
