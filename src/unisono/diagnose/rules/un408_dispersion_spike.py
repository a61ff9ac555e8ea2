"""UN408: the workers' losses suddenly lie much further apart."""

from __future__ import annotations

from collections import deque

from unisono.diagnose.rules.shared.dispersion_shifts import IN_A_ROW, PAST, Jump, goes_below_zero
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median
from unisono.records import StepRecord

SMOOTH = 1.5


class DispersionSpike(Statistical):
    """The workers' losses have suddenly moved apart"""

    code, slug, severity = "UN408", "dispersion-spike", "warning"
    pattern = "Severe Spikes"
    source = "loss dispersion manual, section 4"
    meaning = (
        "The standard deviation of the loss across workers, divided by the mean loss, was for five steps in a row "
        "above all of its last 100 values and above three times their median, while the mean loss stayed where it was. "
        "One step alone is not reported here: see UN104."
    )
    correction = (
        "The manual names unaligned dropout seeds and a forgotten `set_epoch`. Dropout must differ between workers, "
        "and a forgotten `set_epoch` leaves the dispersion unchanged; shuffling that differs between workers is found "
        "by UN102 from the samples drawn. Measured with eight workers "
        "(docs/experiments/silent-inconsistency.md): other seeds and shuffling changed the dispersion by about 1 %, "
        "wrong labels on one worker made it four times as large."
    )
    needs = "two or more workers and 100 steps with their losses, none of them below zero"
    causes = {
        "data-changed": "some workers began to read other data: another file, source or stage",
        "one-worker": "one worker's data or computation changed",
    }
    remedies = {
        "data-changed": ("look at what each worker reads from this step on; shuffle before sharding",),
        "one-worker": ("look at the worker with the highest or lowest loss from this step on",),
    }

    def __init__(self) -> None:
        self._signed = False
        super().__init__()

    def forget(self) -> None:
        self._jump = Jump()
        self._losses: deque[float] = deque(maxlen=PAST)

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        loss, spread = record.loss_mean, record.loss_std
        self._signed = self._signed or goes_below_zero(record)
        if self._signed or loss is None or spread is None or loss <= 0 or len(record.loss_W) < 2:
            return
        jumped = self._jump.add(spread / loss)
        if not jumped:
            self._losses.append(loss)
            if self._jump.ready:
                self.passed(record.step)
        elif self._jump.due and loss < SMOOTH * median(self._losses):
            self._accuse(record, run_state)

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        now, before = self._jump.now, self._jump.before
        self.report(
            record.step,
            run_state,
            why=(
                f"the standard deviation of the workers' losses is {100 * now:.3g} % of their mean, for {IN_A_ROW} "
                f"steps or more; it was {100 * before:.3g} % in the {PAST} steps before, and the mean loss is as it was"
            ),
            causes={"data-changed": 0.5, "one-worker": 0.5},
            evidence={"loss_std_to_mean": round(now, 4), "loss_std_to_mean_before": round(before, 4)},
        )
