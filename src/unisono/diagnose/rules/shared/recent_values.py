"""The newest numbers of a series, cheaply: they are not sorted at every reading."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from unisono.diagnose.statistics import median


class RecentValues:
    """The last `size` numbers. Their median may be as old as a sixth of them."""

    def __init__(self, size: int) -> None:
        self.values: deque[float] = deque(maxlen=size)
        self.median = 0.0
        self._due = 1
        self._unseen = 0

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float) -> None:
        self.values.append(value)
        self._unseen += 1
        if self._unseen >= self._due:
            self._refresh()

    def _refresh(self) -> None:
        self.median = median(self.values)
        self._unseen = 0
        # Early on every reading changes it.
        self._due = max(1, len(self.values) // 6)


def deviation(values: Iterable[float]) -> float:
    """Standard deviation as the middle half of the numbers suggests: up to a quarter may be anything."""
    ordered = sorted(values)
    return (ordered[(3 * len(ordered)) // 4] - ordered[len(ordered) // 4]) / 1.349
