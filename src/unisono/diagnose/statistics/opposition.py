"""Who points away from the others, from directions summed over windows of readings.

At a single reading noise hides where a small batch points; over a window it averages out, and a gradient of the wrong
sign stands apart. It need not be negative while the others' are positive: each update undoes some of the noise of the
last, so in a run that has settled the sums of honest workers may well oppose each other. W = workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from unisono.diagnose.statistics.order import gaps_to_others, median, scatter

WINDOWS = 8
LEARNT = 3
LEAST_NOISE = 0.1
CAP, SLACK, LIMIT = 6.0, 1.5, 10.0
"""Each window's gap below the others, in units of their noise, counts up to the cap, lessened by the slack; an alarm
needs three windows."""

FULL = 2 * LIMIT
SUSPICION = 3.0
"""One window that points away this clearly is worth two more at once."""


class Opposition:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.alarmed = self.suspicious = False
        self._sum_W = [0.0] * workers
        self._since_W = [0] * workers
        self._noise: deque[float] = deque(maxlen=WINDOWS)
        self._cosine_W: list[float] = []

    def add(self, cosine_W: Sequence[float], start: int) -> None:
        """A complete window that began at step `start`."""
        self._cosine_W, gap_W = list(cosine_W), gaps_to_others(cosine_W)
        if len(self._noise) >= LEARNT:
            self._score(gap_W, max(LEAST_NOISE, median(self._noise)), start)
        self._noise.append(scatter(gap_W))

    def _score(self, gap_W: Sequence[float], noise: float, start: int) -> None:
        for worker, gap in enumerate(gap_W):
            if self._sum_W[worker] == 0.0:
                self._since_W[worker] = start
            self._sum_W[worker] = min(FULL, max(0.0, self._sum_W[worker] + min(CAP, -gap / noise) - SLACK))
        self.alarmed = max(self._sum_W) > LIMIT

    def glance(self, cosine_W: Sequence[float]) -> None:
        """At a window that is not complete yet: whether it looks as if the next ones should be heard soon."""
        if len(self._noise) < LEARNT:
            return
        noise = max(LEAST_NOISE, median(self._noise))
        gap_W = gaps_to_others(cosine_W)
        sums = (total + min(CAP, -gap / noise) - SLACK for total, gap in zip(self._sum_W, gap_W, strict=True))
        self.suspicious = max(sums) > SUSPICION

    def cosine(self, worker: int) -> float:
        """In the last window."""
        return self._cosine_W[worker]

    def since(self, worker: int) -> int:
        return self._since_W[worker]

    def outliers(self) -> list[int]:
        """The workers, fewer than half, that stay below the others."""
        opposing = [worker for worker, total in enumerate(self._sum_W) if total > LIMIT]
        return opposing if 2 * len(opposing) < self.workers else []
