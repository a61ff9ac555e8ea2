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
from collections.abc import Collection, Sequence
from operator import sub

from unisono.diagnose.statistics.bets import SIDES, Bets, Persistence
from unisono.diagnose.statistics.order import NORMAL, Window, gaps_to_others, median, scatter

CHANCE = 1e-5
"""Probability of a false alarm in a whole run."""

LOOK_CLOSER, SUSPICION = 2.0, 4.0
"""Logarithms of stakes that are no alarm: worth listening more closely, and too large to be called harmless."""

CAP = 4.0
FURTHER = 10.0
"""Stakes grow no further than this beyond the limit, so that a fault that is over is soon forgotten."""

HARD = 10.0
HARD_READINGS = 3
"""So many gaps above `HARD` units in a row need no bets."""

TOGETHER = 4
"""Readings that are settled together, as long as no bet is close to winning: it saves most of the work."""

LEARNT = 32
"""Readings before the first bet."""


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
        self._limit = math.log(len(SIDES) * workers / CHANCE)
        self._bets = Bets(workers, self._limit + FURTHER)
        self._hard_readings = HARD_READINGS if sudden else math.inf
        self._hard_W = [0] * workers
        self._some_hard = self._far_off = False
        self._gap_TW: deque[list[float]] = deque(maxlen=self.RECENT)
        self._step_T: deque[int] = deque(maxlen=self.RECENT)
        self._levels: dict[tuple[int, int], float] = {}
        """What was asked for since the last reading, by worker and first step."""

        self._all_levels: dict[int, list[float]] = {}
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
        if self._levels or self._all_levels:
            self._levels.clear()
            self._all_levels.clear()
        if self.readings:
            self._score(gap_W, max(self._sizes.median * NORMAL, self.least), step)
        # One worker a reading, in turn: gaps of one reading hang together, and a faulty worker must not set the unit.
        self._sizes.add(abs(gap_W[self.readings % self.workers]))
        self.readings += 1

    def _score(self, gap_W: list[float], unit: float, step: int) -> None:
        score_W = [gap / unit for gap in gap_W]
        least, most = min(score_W), max(score_W)
        if least < -HARD or most > HARD:
            self._count_hard(gap_W, HARD * unit)
        elif self._some_hard:
            self._hard_W, self._far_off, self._some_hard = [0] * self.workers, False, False
        if least < -CAP or most > CAP:
            score_W = [score if -CAP <= score <= CAP else min(CAP, max(-CAP, score)) for score in score_W]
        self._persistence.add(score_W)
        if self.readings < LEARNT:
            return
        unsettled = self._bets.read(score_W, step)
        if self._close or unsettled == TOGETHER:
            largest = self._bets.settle(self.readings, 1 / self._persistence.repeats)
            self._won, self._close, self.suspicious = largest > self._limit, largest > 0, largest > LOOK_CLOSER

    def _count_hard(self, gap_W: list[float], far: float) -> None:
        self._some_hard = True
        self._hard_W = [count + 1 if abs(gap) > far else 0 for count, gap in zip(self._hard_W, gap_W, strict=True)]
        self._far_off = self.ready and max(self._hard_W) >= self._hard_readings

    def level(self, worker: int) -> float:
        """The worker's usual gap since it stays apart, as far as the last readings tell."""
        return self._level(worker, self.since(worker))

    def _level(self, worker: int, since: int) -> float:
        if (worker, since) not in self._levels:
            self._levels[worker, since] = median([gap_W[worker] for gap_W in self._gaps_since(since)])
        return self._levels[worker, since]

    def _levels_since(self, since: int) -> list[float]:
        since = max(since, min(self._step_T))
        if since not in self._all_levels:
            self._all_levels[since] = [median(gaps) for gaps in zip(*self._gaps_since(since), strict=True)]
        return self._all_levels[since]

    def _gaps_since(self, since: int) -> Collection[list[float]]:
        if since <= min(self._step_T):
            return self._gap_TW
        return [gap_W for gap_W, step in zip(self._gap_TW, self._step_T, strict=True) if step >= since]

    def since(self, worker: int) -> int:
        """The step from which on the worker seems to be apart."""
        stake, since = self._bets.best(worker)
        if self._is_hard(worker) and stake <= self._limit:
            return self._step_T[-min(HARD_READINGS, len(self._step_T))]
        return since if self.ready else self._step_T[0]

    def readings_since(self, step: int) -> int:
        """As far as the last readings tell."""
        return sum(one >= step for one in self._step_T)

    def apart(self) -> list[int]:
        """All workers that stay apart."""
        if not self.alarmed:
            return []
        hard = [worker for worker in range(self.workers) if self._is_hard(worker)] if self._some_hard else []
        found = self._bets.winning(self._limit).union(hard)
        return [worker for worker in sorted(found) if abs(self.level(worker)) >= self.least]

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
        if 2 * len(found) >= self.workers or self._bets.winning(SUSPICION, side) - set(found):
            return []
        others = sorted(set(range(self.workers)) - set(found))
        return found if self._stands_out(worst, others) and self._alike(others) else []

    def _stands_out(self, worst: int, others: Sequence[int]) -> bool:
        """Not one of the others that a worker apart has moved to the opposite side."""
        level_W = self._levels_since(self.since(worst))
        return abs(level_W[worst]) >= self.CLEARLY * max(abs(level_W[worker]) for worker in others)

    def _is_hard(self, worker: int) -> bool:
        return self._hard_W[worker] >= self._hard_readings

    def _alike(self, workers: Sequence[int]) -> bool:
        """The workers differ by no more than their noise: not so where everybody repeats a batch of its own."""
        level_W, gaps_W = self._levels_since(min(self._step_T)), list(zip(*self._gap_TW, strict=True))
        noise = median([_noise(gaps_W[worker]) for worker in workers])
        return scatter([level_W[worker] for worker in workers]) <= self.ALIKE * noise


def _noise(values: Sequence[float]) -> float:
    """Standard deviation of the change from one value to the next, as for independent ones around a fixed level."""
    return median(list(map(abs, map(sub, values[1:], values)))) / 0.954
