"""UN406: the workers' directions suddenly agree much less than before."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median, scatter
from unisono.records import StepRecord

BLOCK = 25
PAST_BLOCKS = 3
SETTLED = 200
"""Readings at the start, when a falling cosine is what learning looks like."""

EVERY = 10
DROP = 0.5
CLEAR = 5.0
BACK = 0.7


class ConsistencyDrop(Statistical):
    """The workers' gradients suddenly point in different directions"""

    code, slug, severity = "UN406", "consistency-drop", "warning"
    pattern = "Sudden Drop"
    source = "direction consistency manual, section 3"
    meaning = (
        "The mean cosine between the workers' gradients over the last 25 readings is less than half of what it was in "
        "each of the three stretches of 25 readings before, less than half of what the noise in the gradients "
        "predicts, and lower by more than five times the error of such a difference. It is not looked at during the "
        "first 200 readings, nor across a sudden change of the learning rate."
    )
    correction = (
        "The manual alarms when the value drops from above 0.5 to near 0. Every healthy run does that in its first "
        "hundred steps. Its advice to align all seeds is wrong for dropout and augmentation, which must differ between "
        "workers; a forgotten `set_epoch` does not change the cosine at all. Measured with eight workers "
        "(docs/experiments/silent-inconsistency.md): other seeds, other shuffling and even wrong labels on one "
        "worker did not lower it."
    )
    needs = "200 readings of the workers' directions"
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

    def forget(self) -> None:
        self._cosines: deque[float] = deque(maxlen=BLOCK * (PAST_BLOCKS + 1))
        self._readings = 0
        self._before: float | None = None

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if record.cos_mean is None:
            return
        self._cosines.append(record.cos_mean)
        self._readings += 1
        if self._readings < SETTLED or self._readings % EVERY or record.cos_expected is None:
            return
        now = self._block(PAST_BLOCKS)
        if self._before is None:
            self._before = self._level_before(now, record.cos_expected)
        elif now > BACK * self._before:
            self._before = None
        if self._before is None:
            self.passed(record.step)
        else:
            self._accuse(record, run_state, self._before, now)

    def _block(self, number: int) -> float:
        return median(list(islice(self._cosines, number * BLOCK, (number + 1) * BLOCK)))

    def _level_before(self, now: float, expected: float) -> float | None:
        """What the cosine was, if it has suddenly dropped from there."""
        if now >= DROP * expected:
            return None
        level = min(self._block(number) for number in range(PAST_BLOCKS))
        if level <= 0 or now >= DROP * level:
            return None
        noise = scatter(list(islice(self._cosines, PAST_BLOCKS * BLOCK)))
        # The median of n numbers errs by 1.25 / sqrt(n) of their noise, and there are two of them.
        return level if level - now > CLEAR * 1.25 * noise * math.sqrt(2 / BLOCK) else None

    def _accuse(self, record: StepRecord, run_state: RunState, before: float, now: float) -> None:
        differ = run_state.comparable.replicas_differ
        self.report(
            record.step,
            run_state,
            why=f"the mean cosine between workers fell from {before:.3g} to {now:.3g} within {BLOCK} readings",
            causes={"data-changed": 0.5, "instability": 0.4} | ({"replicas-differ": 0.8} if differ else {}),
            evidence={"cos_before": round(before, 4), "cos_now": round(now, 4)},
        )
