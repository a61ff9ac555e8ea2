"""How many readings in a row tell the same: neighbouring batches may be alike.

W = workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from unisono.diagnose.statistics.order import Window

FAR = 24
"""Readings after which nothing of an earlier batch is left."""

COMPARED = 128
INDEPENDENT = 0.6
"""Neighbours that differ by no less than this share of what distant readings do count as independent."""

ALIKE, CAUTION = 0.3, 2.0
"""Where neighbours are clearly alike, how much so is known only roughly."""

LEAST = 0.05
"""Added to both differences, so that gaps that never change count as independent."""


class Persistence:
    """Compares the usual change from one reading to the next with that over `FAR` readings.

    Medians, of one worker in turn: when a worker begins to stay apart, only the few changes across that moment are off.
    """

    def __init__(self, workers: int) -> None:
        self.repeats = 1.0
        """So many readings count as one."""

        self._workers, self._readings = workers, 0
        self._near, self._far = Window(COMPARED), Window(COMPARED)
        self._past_TW: deque[Sequence[float]] = deque(maxlen=FAR)

    def add(self, score_W: Sequence[float]) -> None:
        past_TW = self._past_TW
        self._readings += 1
        # Every other reading is enough to know, and half of the work.
        if len(past_TW) == FAR and self._readings % 2:
            worker = self._readings // 2 % self._workers
            now, last, first = score_W[worker], past_TW[-1][worker], past_TW[0][worker]
            # Capped scores are equal, whatever the readings were.
            if now not in (last, first):
                self._near.add(abs(now - last))
                self._far.add(abs(now - first))
                self._judge()
        past_TW.append(score_W)

    def _judge(self) -> None:
        share = ((self._near.median + LEAST) / (self._far.median + LEAST)) ** 2
        caution = CAUTION if share < ALIKE else 1.0
        self.repeats = 1.0 if share > INDEPENDENT else caution * (2 - share) / share
