"""Who stays apart from the others: bets against the claim that workers are interchangeable.

Of interchangeable workers each is as likely to hold any one of the values at a reading, whatever the values are. A bet
on worker i multiplies its stake by W exp(t z_i) / sum_j exp(t z_j), where z are the workers' gaps to each other: on
average by 1, if the claim is true. So no way of betting is likely to win much: a stake of s exceeds s / a with
probability a at most, at any time in an endless run (Ville's inequality). A new bet opens at every reading with the
stake 1 / (n ln(n)^2), whose sum is finite, and only the best of them is remembered. Where readings in a row tell the
same, each counts accordingly less. W = workers, T = readings.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from unisono.history._order import NORMAL, Window, gaps_to_others, median, scatter
from unisono.history._persistence import Persistence

TILTS = (0.25, 0.75, 2.25)
"""How boldly to bet, for faint, clear and extreme differences; each three times the one before, up and down."""

CHANCE = 1e-5
"""Probability of a false alarm in a whole run."""

SUSPICION = 4.0
"""Logarithm of a stake that is worth listening more closely; rare, but no alarm."""

CAP = 4.0
STAKES = 2.2
"""No less than the sum of 1 / (n ln(n)^2) from 2 on."""

GROWING = 2.0
"""A bet counts as begun from the last step at which it had not gained more than this."""

FURTHER = 10.0
"""Stakes grow no further than this beyond the limit, so that a fault that is over is soon forgotten."""

HARD = 10.0
HARD_READINGS = 3
"""So many gaps above `HARD` units in a row need no bets."""

TOGETHER = 4
"""Readings that are settled together, as long as no bet is close to winning: it saves most of the work."""

LEARNT = 32
"""Readings before the first bet."""


class Bets:
    """All bets of one tilt, two per worker: that it stays above the others, and below."""

    def __init__(self, tilt: float, workers: int) -> None:
        self.tilt = tilt
        self.highs, self.lows = Side(workers), Side(workers)
        self._high_price = self._low_price = 0.0

    def read(self, power_W: Sequence[float]) -> None:
        """What a bet on anybody would have brought at this reading is the price of a bet on one."""
        self._high_price += math.log(sum(power_W) / len(power_W))
        self._low_price += math.log(sum([1 / power for power in power_W]) / len(power_W))

    def settle(self, sum_W: Sequence[float], share: float, opening: float, most: float, step: int) -> float:
        """The largest stake after the readings since the last time, whose scores add up to `sum_W`.

        :param share: They count so much: less than 1 where several in a row tell the same.
        """
        high_price, low_price = share * self._high_price, share * self._low_price
        self._high_price = self._low_price = 0.0
        gain_W = [share * self.tilt * score for score in sum_W]
        high = self.highs.settle([gain - high_price for gain in gain_W], opening, most, step)
        return max(high, self.lows.settle([-gain - low_price for gain in gain_W], opening, most, step))


class Side:
    """Logarithms of stakes, and since when each has been growing."""

    def __init__(self, workers: int) -> None:
        self.stake_W = [-math.inf] * workers
        self.since_W = [0] * workers

    def settle(self, gain_W: Sequence[float], opening: float, most: float, step: int) -> float:
        stake_W, growing = self.stake_W, opening + GROWING
        for worker, gain in enumerate(gain_W):
            stake = stake_W[worker]
            if stake < growing:
                self.since_W[worker] = step
                stake = stake if stake > opening else opening
            stake += gain
            stake_W[worker] = stake if stake < most else most
        return max(stake_W)


class Peers:
    """Each worker's gap to the median of the others, in units of the usual gap over all workers and the last readings.

    The unit is not less than `least`, the smallest gap that matters at all.
    """

    RECENT = 128
    CLEARLY = 1.5
    ALIKE = 1.0
    """How far the others may lie apart, in units of their noise from reading to reading."""

    def __init__(self, workers: int, least: float, sudden: bool = True) -> None:
        """
        :param sudden: Whether a few readings far off in a row are enough; not so where a gap is all or nothing.
        """
        self.workers, self.least = workers, least
        self.readings = 0
        self.suspicious = False
        self._won = self._close = False
        self._bets = [Bets(tilt, workers) for tilt in TILTS]
        self._sum_W = [0.0] * workers
        self._unsettled = self._first = 0
        self._limit = math.log(2 * len(TILTS) * workers / CHANCE)
        self._hard_readings = HARD_READINGS if sudden else math.inf
        self._hard_W = [0] * workers
        self._far_off = False
        self._gap_TW: deque[list[float]] = deque(maxlen=self.RECENT)
        self._step_T: deque[int] = deque(maxlen=self.RECENT)
        self._sizes = Window(128)
        self._persistence = Persistence(workers)

    @property
    def ready(self) -> bool:
        return self.readings >= LEARNT

    @property
    def alarmed(self) -> bool:
        """Some stake is beyond the limit; whether it is worth a word, `apart` says."""
        return self._won or self._far_off

    def add(self, value_W: Sequence[float], step: int) -> None:
        gap_W = gaps_to_others(value_W)
        self._gap_TW.append(gap_W)
        self._step_T.append(step)
        if self.readings:
            self._bet(gap_W, max(self._sizes.median * NORMAL, self.least), step)
        # One worker a reading, in turn: gaps of one reading hang together, and a faulty worker must not set the unit.
        self._sizes.add(abs(gap_W[self.readings % self.workers]))
        self.readings += 1

    def _bet(self, gap_W: list[float], unit: float, step: int) -> None:
        least, most = min(gap_W) / unit, max(gap_W) / unit
        if least < -CAP or most > CAP:
            capped_W = [min(CAP, max(-CAP, gap / unit)) for gap in gap_W]
        else:
            capped_W = [gap / unit for gap in gap_W]
        self._count_hard(gap_W, unit, least < -HARD or most > HARD)
        self._persistence.add(capped_W)
        if not self.ready:
            return
        self._first = self._first if self._unsettled else step
        self._unsettled += 1
        self._sum_W = [total + score for total, score in zip(self._sum_W, capped_W, strict=True)]
        power_W = [math.exp(TILTS[0] * score) for score in capped_W]
        for bets in self._bets:
            bets.read(power_W)
            power_W = [power * power * power for power in power_W]
        if self._unsettled == TOGETHER or self._close:
            self._settle()

    def _count_hard(self, gap_W: list[float], unit: float, some: bool) -> None:
        if some:
            far = HARD * unit
            self._hard_W = [count + 1 if abs(gap) > far else 0 for count, gap in zip(self._hard_W, gap_W, strict=True)]
            self._far_off = self.ready and max(self._hard_W) >= self._hard_readings
        elif any(self._hard_W):
            self._hard_W, self._far_off = [0] * self.workers, False

    def _settle(self) -> None:
        share = 1 / self._persistence.repeats
        opening = -math.log(STAKES * self.readings * math.log(self.readings) ** 2)
        most = self._limit + FURTHER
        largest = max([bets.settle(self._sum_W, share, opening, most, self._first) for bets in self._bets])
        self._sum_W, self._unsettled = [0.0] * self.workers, 0
        self._won, self._close, self.suspicious = largest > self._limit, largest > 0, largest > SUSPICION

    def level(self, worker: int) -> float:
        """The worker's usual gap since it stays apart, as far as the last readings tell."""
        return self._level(worker, self.since(worker))

    def _level(self, worker: int, since: int) -> float:
        return median([gap_W[worker] for gap_W, step in zip(self._gap_TW, self._step_T, strict=True) if step >= since])

    def since(self, worker: int) -> int:
        """The step from which on the worker seems to be apart."""
        best = max(self._sides(1) + self._sides(-1), key=lambda side: side.stake_W[worker])
        if self._is_hard(worker) and best.stake_W[worker] <= self._limit:
            return self._step_T[-min(HARD_READINGS, len(self._step_T))]
        return best.since_W[worker] if self.ready else self._step_T[0]

    def readings_since(self, step: int) -> int:
        """As far as the last readings tell."""
        return sum(one >= step for one in self._step_T)

    def apart(self) -> list[int]:
        """All workers that stay apart."""
        if not self.alarmed:
            return []
        return [w for w in range(self.workers) if self._is_apart(w) and abs(self.level(w)) >= self.least]

    def outliers(self) -> list[int]:
        """The workers, fewer than half, that stay apart from others that are alike; of two workers, either of them."""
        apart = self.apart()
        if not apart:
            return []
        level_by_worker = {worker: self.level(worker) for worker in apart}
        worst = max(apart, key=lambda worker: abs(level_by_worker[worker]))
        if self.workers == 2:
            return [worst]
        # The others are pulled to the opposite side, because those apart move the median they are held against.
        side = 1 if level_by_worker[worst] > 0 else -1
        found = [worker for worker in apart if side * level_by_worker[worker] > 0]
        others = [worker for worker in range(self.workers) if worker not in found]
        if 2 * len(found) >= self.workers or any(self._stake(worker, side) > SUSPICION for worker in others):
            return []
        return found if self._stands_out(worst, others) and self._alike(others) else []

    def _stands_out(self, worst: int, others: Sequence[int]) -> bool:
        """Not one of the others that a worker apart has moved to the opposite side."""
        since = self.since(worst)
        largest = max(abs(self._level(worker, since)) for worker in others)
        return abs(self._level(worst, since)) >= self.CLEARLY * largest

    def _is_apart(self, worker: int) -> bool:
        return max(self._stake(worker, 1), self._stake(worker, -1)) > self._limit or self._is_hard(worker)

    def _stake(self, worker: int, side: int) -> float:
        return max(bets.stake_W[worker] for bets in self._sides(side))

    def _sides(self, side: int) -> list[Side]:
        return [bets.highs if side > 0 else bets.lows for bets in self._bets]

    def _is_hard(self, worker: int) -> bool:
        return self._hard_W[worker] >= self._hard_readings

    def _alike(self, workers: Sequence[int]) -> bool:
        """The workers differ by no more than their noise: not so where everybody repeats a batch of its own."""
        gaps = [[gap_W[worker] for gap_W in self._gap_TW] for worker in workers]
        return scatter([median(own) for own in gaps]) <= self.ALIKE * median([_noise(own) for own in gaps])


def _noise(values: Sequence[float]) -> float:
    """Standard deviation of the change from one value to the next, as for independent ones around a fixed level."""
    return median([abs(later - earlier) for earlier, later in pairwise(values)]) / 0.954
