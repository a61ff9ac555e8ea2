"""UN407: the workers' directions agree less and less, while the loss no longer falls."""

from __future__ import annotations

from collections import deque

from unisono.diagnose.rules.shared.recent_values import deviation
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import Blocks
from unisono.records import StepRecord

SETTLED = 500
BLOCK = 200
BLOCKS = 6
HALVED = 0.5
FALLING = 0.02
CLEAR = 8.0


class ConsistencyDecline(Statistical):
    """The workers' gradients agree less and less"""

    code, slug, severity = "UN407", "consistency-decline", "warning"
    pattern = "Gradual Divergence (direction)"
    source = "direction consistency manual, section 3"
    meaning = (
        "Over six stretches of 200 readings the mean cosine between the workers' gradients fell from each to the next, "
        "to less than half, while the loss did not fall. Agreement also falls as a model learns, but then the loss "
        "falls with it. A remark as long as the workers' weights were not found to differ; a warning if they were."
    )
    correction = (
        "The manual blames precision drift. Rounding alone does not make replicas differ where all apply the same "
        "averaged gradient; whether they do is compared bit for bit (UN301) and need not be guessed from a cosine."
    )
    needs = "1,700 readings of the workers' directions with the loss"
    causes = {
        "replicas-differ": "the workers' weights drift apart",
        "plateau": "little is left to learn at this learning rate, so noise takes a growing share",
        "data-drift": "the data of the workers become less alike",
    }
    remedies = {
        "replicas-differ": ("broadcast the weights of one rank, and see UN301 for the parameter that differed first",),
        "plateau": ("lower the learning rate or use larger batches, if the loss should still fall",),
        "data-drift": ("check whether the order of the data differs between workers over the epoch",),
    }

    def forget(self) -> None:
        self._readings = 0
        self._cosines, self._losses = Blocks(BLOCK, BLOCKS), Blocks(BLOCK, BLOCKS)
        self._recent: deque[float] = deque(maxlen=BLOCK)

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if record.cos_mean is None or record.loss_mean is None:
            return
        self._readings += 1
        if self._readings <= SETTLED:
            return
        self._recent.append(record.cos_mean)
        self._losses.add(record.loss_mean)
        if not self._cosines.add(record.cos_mean) or not self._cosines.full:
            return
        if self._declines() and not self._learns():
            self._accuse(record, run_state)
        else:
            self.passed(record.step)

    def _declines(self) -> bool:
        first, last = self._cosines.medians[0], self._cosines.medians[-1]
        error = 1.25 * deviation(self._recent) / BLOCK**0.5
        return self._cosines.falling and last < HALVED * first and first - last > CLEAR * error

    def _learns(self) -> bool:
        first, last = self._losses.medians[0], self._losses.medians[-1]
        return last < first - FALLING * abs(first)

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        first, last = self._cosines.medians[0], self._cosines.medians[-1]
        differ = run_state.comparable.replicas_differ
        self.report(
            record.step,
            run_state,
            why=(
                f"the mean cosine between workers fell steadily from {first:.3g} to {last:.3g} "
                f"over {BLOCK * BLOCKS} readings, and the loss did not fall"
            ),
            causes={"replicas-differ": 0.9} if differ else {"plateau": 0.5, "data-drift": 0.3},
            severity="warning" if differ else "info",
            evidence={"cos_before": round(first, 4), "cos_now": round(last, 4)},
        )
