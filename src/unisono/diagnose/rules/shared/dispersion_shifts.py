"""How dispersion moves: at once, or over hundreds of steps."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from operator import mul

from unisono.diagnose.rules.shared.recent_values import RecentValues
from unisono.diagnose.statistics import median
from unisono.records import StepRecord

PAST = 100
IN_A_ROW = 5
EVERY = 10
FACTOR = 3.0
LEAST = 0.02
"""A dispersion of less than 2 % of the mean is not worth a word, whatever it was before."""

STRETCH = 50
NOW = 2
LEVEL = 6
"""Stretches that are held against each other: the last ones, and those before."""

KEPT = 24
ROSE = 1.6
"""A dispersion that doubles in 500 steps has come this far after 450, on average over the last 100."""

NOTHING = 1e-12
"""Stands, as a share of the loss, for a dispersion of zero."""

SETTLED = 10
"""Stretches at the start."""

SLOW = 0.98
"""Of a loss that falls slowly, what is left of it after 150 steps."""

LEARNT = 0.8
"""A loss falls below this share when most of the learning begins, and takes the workers apart in healthy runs too."""

NOT_RISEN, SLOWLY_RISING = 1.1, 1.15
DOUBLED = 2.0
LOSS_ROSE = 1.3
CLEAR = 4.5
"""Standard deviations of a stretch's dispersion, by which one may be above another by chance."""

LASTING = 0.3
"""Noise gives shares near zero, and so does everything that goes from worker to worker."""


def goes_below_zero(record: StepRecord) -> bool:
    """Losses of both signs have no mean to measure their distance by: it goes through zero."""
    return any(loss is not None and loss < 0 for loss in record.loss_W)


class Jump:
    """Five readings in a row above the largest of the last 100, and three times their median.

    Only the order of the readings counts, so the chance of it in a series without a change is the same for any
    distribution: one in 10^8 readings. Where the dispersion has been rising all the time, as early in a run, the
    largest counts for as much more.
    """

    def __init__(self) -> None:
        self._past = RecentValues(PAST)
        self._waiting: deque[float] = deque(maxlen=IN_A_ROW)
        self._lasted = 0
        self.ready = False

    def add(self, value: float) -> bool:
        """Whether the series has jumped. The past is not learnt from readings that may belong to a jump."""
        # The past as a whole is asked for last: it costs most, and is rarely needed.
        if self.ready and value > LEAST and value > FACTOR * self._past.median and value > self._highest():
            self._waiting.append(value)
            self._lasted += 1
            return self._lasted >= IN_A_ROW
        if self._waiting:
            self._give_up_waiting()
        self._past.add(value)
        self.ready = self.ready or len(self._past) == PAST
        return False

    def _highest(self) -> float:
        past = list(self._past.values)
        older, newer = median(past[: PAST // 2]), median(past[PAST // 2 :])
        return max(past) * (max(1.0, newer / older) if older > 0 else 1.0)

    def learn(self, value: float) -> None:
        """A reading that cannot be judged, because too much has changed since those before."""
        self._waiting.clear()
        self._lasted = 0
        self._past.add(value)
        self.ready = self.ready or len(self._past) == PAST

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


class Rise:
    """Loss and its standard deviation across workers over stretches of 50 steps: what has risen, from which level.

    A level is six stretches in which the dispersion did not rise. The early rise of healthy runs, in which untrained
    models are wrong everywhere alike, starts from none.

    :param loss_growth: The loss of the second half of a level, as a multiple of that of the first, is at most this.
    """

    def __init__(self, loss_growth: float) -> None:
        self._most = loss_growth
        self._signed = False
        self._stretches = 0
        self._first = 0.0
        """Loss of the first stretch."""

        self._stretch: list[StepRecord] = []
        self._before: list[StepRecord] = []
        self._losses: deque[float] = deque(maxlen=KEPT)
        self._spreads: deque[float] = deque(maxlen=KEPT)
        self.spread = self.loss = self.loss_before = 0.0
        self.growth = self.needed = 0.0
        """Of the dispersion since it had a level, and how much neither noise nor a loss that rose again explains."""

        self.lasting = 0.0
        """Share of the squared dispersion that is the same workers' all the time, where it has risen."""

    def add(self, record: StepRecord) -> bool:
        """Whether a stretch is complete, and there is a past to hold it against."""
        loss, spread = record.loss_mean, record.loss_std
        self._signed = self._signed or goes_below_zero(record)
        if self._signed or loss is None or spread is None or loss <= 0:
            return False
        if len(record.loss_W) < 2 or None in record.loss_W:
            return False
        self._stretch.append(record)
        if len(self._stretch) < STRETCH:
            return False
        self._losses.append(median([one.loss_mean or 0.0 for one in self._stretch]))
        spread = median([one.loss_std or 0.0 for one in self._stretch])
        self._spreads.append(max(spread, NOTHING * self._losses[-1]))
        self._first = self._first or self._losses[-1]
        self._stretches += 1
        past = len(self._losses) > LEVEL + NOW
        if past:
            self._compare()
        self._before, self._stretch = self._stretch, []
        return past

    def _compare(self) -> None:
        spreads, losses = list(self._spreads), list(self._losses)
        self.spread, self.loss = min(spreads[-NOW:]), median(losses[-NOW:])
        self.lasting = self._lasting_share() if self.spread > ROSE * min(spreads[:-NOW]) else 0.0
        # A loss that has risen since, as at a step to harder data, takes the dispersion with it.
        since = max((at for at, loss in enumerate(losses) if self.loss > LOSS_ROSE * loss), default=-1)
        starts = range(since + 1, len(spreads) - NOW - LEVEL + 1)
        self.growth = self.needed = 0.0
        clear = math.exp(CLEAR * _noise(spreads))
        for at in starts:
            growth = self.spread / median(spreads[at : at + LEVEL])
            rose = ROSE if self.lasting > LASTING else self._growth_needed(spreads, losses, at)
            needed = max(clear, rose * max(1.0, self.loss / min(losses[at:])))
            if growth / needed > (self.growth / self.needed if self.needed else 0.0):
                self.growth, self.needed = growth, needed
                self.loss_before = median(losses[at : at + LEVEL])

    def _lasting_share(self) -> float:
        """From the product of each worker's usual distance from the mean in this stretch and in the one before."""
        now_W, before_W = _distances(self._stretch), _distances(self._before)
        if len(now_W) != len(before_W) or self.spread <= 0:
            return 0.0
        return float(sum(map(mul, now_W, before_W))) / len(now_W) / self.spread**2

    def _growth_needed(self, spreads: list[float], losses: list[float], at: int) -> float:
        """From these stretches on; infinite where they are no level."""
        first, second = slice(at, at + LEVEL // 2), slice(at + LEVEL // 2, at + LEVEL)
        loss_growth = median(losses[second]) / median(losses[first])
        rising = median(spreads[second]) / median(spreads[first])
        if loss_growth > self._most:
            return math.inf
        learns = loss_growth <= SLOW
        level = median(losses[at : at + LEVEL])
        if learns and level > LEARNT * self._first and self.loss < LEARNT * level:
            return math.inf
        if rising <= (NOT_RISEN if learns else 1.0):
            return ROSE
        # While little is learnt, a dispersion that rises all the time is no sign of learning.
        settled = not learns and self._stretches - len(spreads) + at >= SETTLED
        return DOUBLED if settled and rising <= SLOWLY_RISING else math.inf

    @property
    def rose(self) -> bool:
        return self.growth > self.needed > 0 and self.spread > LEAST * self.loss

    @property
    def spread_before(self) -> float:
        return self.spread / self.growth

    @property
    def loss_growth(self) -> float:
        return self.loss / self.loss_before


def _noise(spreads: list[float]) -> float:
    """Standard deviation of a stretch's logarithm, from the changes from one to the next."""
    changes = [abs(math.log(later / earlier)) for earlier, later in pairwise(spreads) if earlier > 0 and later > 0]
    return median(changes) / (0.6745 * math.sqrt(2)) if changes else 0.0


def _distances(stretch: list[StepRecord]) -> list[float]:
    """Each worker's median distance from the mean loss."""
    apart_TW = [[(loss or 0.0) - (one.loss_mean or 0.0) for loss in one.loss_W] for one in stretch]
    return [median(apart_T) for apart_T in zip(*apart_TW, strict=True)]
