"""UN403: the gradient norm swings up and down at every step, far more than it used to."""

from __future__ import annotations

import math
from collections import deque

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median
from unisono.records import StepRecord

RECENT = 50
PAST = 200
EVERY = 10
ALTERNATING = 0.9
"""Share of changes of opposite sign to the one before; two thirds for independent numbers."""

GROWN = 3.0
LARGE = math.log(1.5)


class GradientOscillation(Statistical):
    """The gradient norm swings up and down from step to step"""

    code, slug, severity = "UN403", "gradient-oscillation", "warning"
    pattern = "Persistent Oscillation"
    source = "global gradient norm manual, section 3"
    meaning = (
        "Over the last 50 consecutive steps the gradient norm has gone up and down in turn at nine of ten steps, "
        "usually by more than half, and three times as much as in the 200 steps before. Noise alone turns at two of "
        "three steps and does not grow: the steps jump from one side of a valley to the other. Where the norm is not "
        "heard at every step, the same is asked of the mean loss, which is."
    )
    needs = "250 consecutive steps with the gradient norm or the loss"
    causes = {
        "learning-rate": "the learning rate is at the edge of what is stable",
        "small-batch": "batches are small, and few rare samples make the norm jump",
    }
    remedies = {
        "learning-rate": ("lower the learning rate (try half), or lengthen its warm-up",),
        "small-batch": ("use larger batches or accumulate gradients over more of them",),
    }
    explains = ("UN406",)

    def forget(self) -> None:
        self._norms, self._losses = Swings(), Swings()

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        norm, loss = record.grad_norm, record.loss_mean
        if norm is not None and norm > 0:
            self._norms.add(record.step, norm)
        if loss is not None and loss > 0:
            self._losses.add(record.step, loss)
        if record.step % EVERY == 0:
            self._judge(record, run_state)

    def _judge(self, record: StepRecord, run_state: RunState) -> None:
        consecutive = self._norms.ready(record.step)
        swings, thing = (self._norms, "gradient norm") if consecutive else (self._losses, "mean loss")
        if not swings.ready(record.step):
            return
        if swings.alternate():
            self._accuse(record, run_state, swings, thing)
        else:
            self.passed(record.step)

    def _accuse(self, record: StepRecord, run_state: RunState, swings: Swings, thing: str) -> None:
        now, before = math.exp(swings.size), math.exp(swings.before)
        self.report(
            record.step,
            run_state,
            why=f"the {thing} goes up and down by a factor of {now:.3g} at every step (before: {before:.3g})",
            causes={"learning-rate": 0.7, "small-batch": 0.3},
            evidence={"of": thing, "swing": round(now, 3), "swing_before": round(before, 3)},
        )


class Swings:
    """Changes of a logarithm from step to step: the newest, and how large those before usually were."""

    def __init__(self) -> None:
        self._changes: deque[float] = deque()
        self._past: deque[float] = deque(maxlen=PAST)
        self._turns = 0
        self._step = -1
        self._last = 0.0

    def add(self, step: int, value: float) -> None:
        last, self._last = self._last, math.log(value)
        before, self._step = self._step, step
        if step != before + 1 or before < 0:
            self._changes.clear()
            self._turns = 0
            return
        changes, change = self._changes, self._last - last
        if changes and changes[-1] * change < 0:
            self._turns += 1
        changes.append(change)
        if len(changes) > RECENT:
            oldest = changes.popleft()
            self._turns -= oldest * changes[0] < 0
            # Swings do not become usual while they last.
            if self._turns < ALTERNATING * (RECENT - 1):
                self._past.append(abs(oldest))

    def ready(self, step: int) -> bool:
        return step == self._step and len(self._changes) == RECENT and len(self._past) == PAST

    def alternate(self) -> bool:
        if self._turns < ALTERNATING * (RECENT - 1):
            return False
        return self.size > max(LARGE, GROWN * self.before)

    @property
    def size(self) -> float:
        return median([abs(change) for change in self._changes])

    @property
    def before(self) -> float:
        return median(self._past)
