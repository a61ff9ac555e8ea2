"""How dispersion moves: at once, or over thousands of steps."""

from __future__ import annotations

from collections import deque

from unisono.diagnose.rules.shared.recent_values import RecentValues
from unisono.diagnose.statistics import Blocks, median
from unisono.records import StepRecord

PAST = 100
IN_A_ROW = 5
EVERY = 10
FACTOR = 3.0
LEAST = 0.02
"""A dispersion of less than 2 % of the mean is not worth a word, whatever it was before."""

SETTLED = 500
BLOCK = 250
BLOCKS = 6
SPAN = BLOCK * (BLOCKS - 1)
DOUBLED = 2.0


class Jump:
    """Five readings in a row above the largest of the last 100, and three times their median.

    Only the order of the readings counts, so the chance of it in a series without a change is the same for any
    distribution: one in 10^8 readings.
    """

    def __init__(self) -> None:
        self._past = RecentValues(PAST)
        self._waiting: deque[float] = deque(maxlen=IN_A_ROW)
        self._lasted = 0
        self.ready = False

    def add(self, value: float) -> bool:
        """Whether the series has jumped. The past is not learnt from readings that may belong to a jump."""
        # The largest of the past is asked for last: it costs most, and is rarely needed.
        if self.ready and value > LEAST and value > FACTOR * self._past.median and value > max(self._past.values):
            self._waiting.append(value)
            self._lasted += 1
            return self._lasted >= IN_A_ROW
        if self._waiting:
            self._give_up_waiting()
        self._past.add(value)
        self.ready = self.ready or len(self._past) == PAST
        return False

    def _give_up_waiting(self) -> None:
        if len(self._waiting) < IN_A_ROW:
            for waiting in self._waiting:
                self._past.add(waiting)
        self._waiting.clear()
        self._lasted = 0

    @property
    def due(self) -> bool:
        """Whether a jump is to be told: at once, and now and then as long as it lasts."""
        return (self._lasted - IN_A_ROW) % EVERY == 0

    @property
    def now(self) -> float:
        return median(self._waiting)

    @property
    def before(self) -> float:
        return self._past.median


class Drift:
    """Loss and its standard deviation across workers, over six stretches of 250 steps, after the first 500."""

    def __init__(self) -> None:
        self._readings = 0
        self._losses: list[float] = []
        self._spreads: list[float] = []
        self.spreads, self.losses = Blocks(BLOCK, BLOCKS), Blocks(BLOCK, BLOCKS)

    def add(self, record: StepRecord) -> bool:
        """Whether there is something to judge: six stretches, the last just completed."""
        loss, spread = record.loss_mean, record.loss_std
        if loss is None or spread is None or loss <= 0 or len(record.loss_W) < 2:
            return False
        self._readings += 1
        if self._readings <= SETTLED:
            return False
        self._losses.append(loss)
        self._spreads.append(spread)
        return len(self._losses) == BLOCK and self._end_stretch()

    def _end_stretch(self) -> bool:
        self.losses.medians.append(median(self._losses))
        self.spreads.medians.append(median(self._spreads))
        self._losses.clear()
        self._spreads.clear()
        return self.spreads.full

    @property
    def spreading(self) -> bool:
        """The dispersion has risen all the time, to more than twice its value."""
        return self.spreads.rising and self.spreads.growth > DOUBLED
