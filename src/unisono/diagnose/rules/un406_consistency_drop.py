"""UN406: the workers' directions suddenly agree much less than before."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import islice, pairwise

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median, scatter
from unisono.records import StepRecord

SHORT, LONG = 8, 25
"""Readings that are held against the three times as many before them."""

PAST_BLOCKS = 3
EARLY, SETTLED = 50, 200
"""Readings at the start. From the first on short blocks are held against each other, then long ones, too."""

EVERY = 10
DROP = 0.5
OF_LEVEL = {SHORT: 0.35, LONG: DROP}
LEAST = {SHORT: 0.2, LONG: 0.0}
"""A cosine that has been lower than this cannot drop far in few readings."""

CLEAR = 5.0
"""Errors of such a difference."""

BACK = 0.7

EDGE = 4
"""Readings on both sides of a drop."""

AT_ONCE = 0.7
"""Share of a drop that lies between them; learning takes longer."""

EXPLAINED = 0.5
"""Share of a drop that an earlier decline, had it gone on, would have brought."""

CLOSE = 24
"""Steps within which they lie, or nobody knows how sudden it was."""

LEARNING = 0.98
"""Share of the loss before: while it falls below, a falling cosine is what learning looks like."""


@dataclass(frozen=True, slots=True)
class Reading:
    step: int
    cosine: float
    loss: float | None


class ConsistencyDrop(Statistical):
    """The workers' gradients suddenly point in different directions"""

    code, slug, severity = "UN406", "consistency-drop", "warning"
    pattern = "Sudden Drop"
    source = "direction consistency manual, section 3"
    meaning = (
        "The mean cosine between the workers' gradients over the last 8 readings is less than 35 % of what it was in "
        "each of the three stretches of 8 readings before (0.2 or more), less than half of what the noise in the "
        "gradients predicts, and lower by more than five times the error of such a difference. Most of the drop lies "
        "between neighbouring readings, or, where readings are rare, the loss has not fallen meanwhile: in the first "
        "hundreds of steps a falling cosine is what learning looks like. After 200 readings stretches of 25 are "
        "compared as well, for a fall to less than half. Where readings are rare, and over stretches of 25, a decline "
        "that would have brought half of the drop by going on as before is not sudden (UN407). It is not looked at "
        "during the first 50 readings, nor across a sudden change of the learning rate."
    )
    correction = (
        "The manual alarms when the value drops from above 0.5 to near 0. Every healthy run does that in its first "
        "hundred steps. Its advice to align all seeds is wrong for dropout and augmentation, which must differ between "
        "workers; a forgotten `set_epoch` does not change the cosine at all. Measured with eight workers "
        "(docs/experiments/silent-inconsistency.md): other seeds, other shuffling and even wrong labels on one "
        "worker did not lower it."
    )
    needs = "50 readings of the workers' directions"
    causes = {
        "data-changed": "the data changed: another mix, another stage, shards that are no longer alike",
        "instability": "a large step threw the weights into a region where gradients are noisy",
        "replicas-differ": "the workers no longer hold the same weights",
    }
    remedies = {
        "data-changed": (
            "compare what the loader yields before and after the step: sources, order, sampler arguments",
        ),
        "instability": ("look at the gradient norm and the learning rate around the step; lower the rate or clip",),
        "replicas-differ": ("broadcast the weights of one rank, and find out why the update differed",),
    }

    explains = ("UN405",)

    def forget(self) -> None:
        self._last: deque[Reading] = deque(maxlen=LONG * (PAST_BLOCKS + 1))
        self._readings = 0
        self._before: float | None = None
        self._block = SHORT

    @property
    def suspicious(self) -> bool:
        """Three readings of less than half of what was usual: too few to say so."""
        if self._readings < EARLY or self._before is not None:
            return False
        past = [one.cosine for one in islice(self._last, max(0, len(self._last) - 4 * SHORT), len(self._last) - 3)]
        level, noise = median(past), scatter(past)
        newest = [self._last[-1 - place].cosine for place in range(3)]
        return max(newest) < DROP * level and level - max(newest) > CLEAR * noise

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if record.cos_mean is None:
            return
        self._last.append(Reading(record.step, record.cos_mean, record.loss_mean))
        self._readings += 1
        if self._readings < EARLY or record.cos_expected is None:
            return
        if self._before is None:
            self._look(record.cos_expected)
        elif self._readings % EVERY:
            return
        elif self._median(0) > BACK * self._before:
            self._before = None
        if self._before is not None:
            self._accuse(record, run_state, self._before, self._median(0))
        elif self._readings % EVERY == 0:
            self.passed(record.step)

    def _look(self, expected: float) -> None:
        self._block = SHORT
        self._before = self._level_before(expected) if self._readings % 2 == 0 else None
        if self._before is None and self._readings >= SETTLED and self._readings % EVERY == 0:
            self._block = LONG
            self._before = self._level_before(expected)

    def _values(self, back: int, count: int) -> list[Reading]:
        """`count` readings, the last of them `back` readings ago."""
        end = len(self._last) - back
        return list(islice(self._last, end - count, end))

    def _median(self, number: int) -> float:
        """Of the last block but `number`."""
        return median([one.cosine for one in self._values(number * self._block, self._block)])

    def _level_before(self, expected: float) -> float | None:
        """What the cosine was, if it has suddenly dropped from there."""
        now, block = self._median(0), self._block
        if now >= DROP * expected:
            return None
        level = min(self._median(number) for number in range(1, PAST_BLOCKS + 1))
        if level <= LEAST[block] or now >= OF_LEVEL[block] * level:
            return None
        # The median of n numbers errs by 1.25 / sqrt(n) of their noise.
        error = 1.25 * self._noise() / math.sqrt(block)
        if level - now <= CLEAR * math.sqrt(2) * error or now >= DROP * expected - error:
            return None
        return level if self._is_sudden(level - now) else None

    def _noise(self) -> float:
        """The largest of what the readings before and after say, and the changes from one to the next."""
        before, after = self._values(self._block, PAST_BLOCKS * self._block), self._values(0, self._block)
        changes = median([abs(later.cosine - earlier.cosine) for earlier, later in pairwise(self._last)]) / 0.954
        return max(changes, *(scatter([one.cosine for one in stretch]) for stretch in (before, after)))

    def _is_sudden(self, drop: float) -> bool:
        before, after = self._values(self._block, EDGE), self._values(self._block - EDGE, EDGE)
        close = after[-1].step - before[0].step <= CLOSE
        if self._block == LONG or not close:
            return not self._goes_on_falling(drop) and (self._block == LONG or self._is_no_learning())
        return median([one.cosine for one in before]) - median([one.cosine for one in after]) >= AT_ONCE * drop

    def _goes_on_falling(self, drop: float) -> bool:
        """A decline at the pace of the stretches before is slow, however long it was not heard."""
        numbers = range(PAST_BLOCKS + 1)
        middles = [median([one.step for one in self._values(number * self._block, self._block)]) for number in numbers]
        pace = (self._median(PAST_BLOCKS) - self._median(1)) / (middles[1] - middles[PAST_BLOCKS])
        return pace * (middles[0] - middles[1]) > EXPLAINED * drop

    def _is_no_learning(self) -> bool:
        losses = [one.loss for one in (*self._values(SHORT, SHORT), *self._values(0, SHORT)) if one.loss is not None]
        return len(losses) == 2 * SHORT and median(losses[SHORT:]) >= LEARNING * median(losses[:SHORT])

    def _accuse(self, record: StepRecord, run_state: RunState, before: float, now: float) -> None:
        differ = run_state.comparable.replicas_differ
        self.report(
            record.step,
            run_state,
            why=f"the mean cosine between workers fell from {before:.3g} to {now:.3g} within {self._block} readings",
            causes={"data-changed": 0.5, "instability": 0.4} | ({"replicas-differ": 0.8} if differ else {}),
            evidence={"cos_before": round(before, 4), "cos_now": round(now, 4)},
        )
