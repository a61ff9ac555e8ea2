"""Bets that a worker stays above the others, or below: stakes, their growth and since when they grow.

W = workers, T = readings. Stakes, prices and gains are logarithms.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from math import exp, log
from operator import truediv

from unisono.diagnose.statistics.order import Window

TILTS = (0.25, 0.75, 2.25)
"""How boldly to bet, for faint, clear and extreme differences; each three times the one before."""

SIDES = (*TILTS, *(-tilt for tilt in TILTS))
"""Up and down."""

STAKES = 2.2
"""No less than the sum of 1 / (n ln(n)^2) from 2 on."""

GROWING = 2.0
"""A bet counts as begun from the last step at which it had not gained more than this."""

PAIRS = tuple((at, at + len(TILTS)) for at in range(len(TILTS)))
ONES = repeat(1.0)


class Bets:
    """Bets of three tilts on either side of every worker; in lists of all bets, those of one tilt stand together."""

    def __init__(self, workers: int, most: float) -> None:
        """
        :param most: Stakes grow no further.
        """
        self._workers, self._most = workers, most
        self._largest = -math.inf
        self._stakes = [-math.inf] * (len(SIDES) * workers)
        self._since = [0] * len(self._stakes)
        self._prices = [0.0] * len(SIDES)
        self._score_TW: list[Sequence[float]] = []
        self._first = 0

    def read(self, score_W: Sequence[float], step: int) -> int:
        """How many readings there are to be settled.

        What a bet on anybody would have brought at a reading is the price of a bet on one.
        """
        if not self._score_TW:
            self._first = step
        self._score_TW.append(score_W)
        count, tilt, prices = len(score_W), TILTS[0], self._prices
        power_W = [exp(tilt * score) for score in score_W]
        for high, low in PAIRS:
            if high:
                power_W = [power * power * power for power in power_W]
            prices[high] += log(sum(power_W) / count)
            prices[low] += log(sum(map(truediv, ONES, power_W)) / count)
        return len(self._score_TW)

    def settle(self, readings: int, share: float) -> float:
        """The largest stake after the readings since the last time.

        :param readings: So many there have been in all: the more, the smaller are the stakes of new bets.
        :param share: Those since the last time count so much: less than 1 where several in a row tell the same.
        """
        opening = -log(STAKES * readings * log(readings) ** 2)
        growing, first, gains = opening + GROWING, self._first, self._gains(share)
        if self._largest < growing:
            self._since = [first] * len(gains)
        else:
            stakes = zip(self._stakes, self._since, strict=True)
            self._since = [first if stake < growing else since for stake, since in stakes]
        stakes_and_gains = zip(self._stakes, gains, strict=True)
        self._stakes = [(stake if stake > opening else opening) + gain for stake, gain in stakes_and_gains]
        self._largest = max(self._stakes)
        if self._largest > self._most:
            most = self._largest = self._most
            self._stakes = [stake if stake < most else most for stake in self._stakes]
        return self._largest

    def _gains(self, share: float) -> list[float]:
        score_TW, self._score_TW = self._score_TW, []
        prices, self._prices = self._prices, [0.0] * len(SIDES)
        sum_W = score_TW[0] if len(score_TW) == 1 else list(map(sum, zip(*score_TW, strict=True)))
        gains: list[float] = []
        for tilt, price in zip(SIDES, prices, strict=True):
            factor, price = share * tilt, share * price
            gains += [factor * score - price for score in sum_W]
        return gains

    def winning(self, limit: float, side: int = 0) -> set[int]:
        """The workers with a stake above the limit: on staying above (1), below (-1) or on either."""
        half = len(self._stakes) // 2
        stakes = self._stakes[half if side < 0 else 0 : half if side > 0 else None]
        return {at % self._workers for at, stake in enumerate(stakes) if stake > limit}

    def best(self, worker: int) -> tuple[float, int]:
        """The largest stake on a worker, and since when it has been growing."""
        stakes = self._stakes[worker :: self._workers]
        largest = max(stakes)
        return largest, self._since[worker :: self._workers][stakes.index(largest)]


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
