"""UN405: the workers' gradients are mostly noise, and the loss no longer falls."""

from __future__ import annotations

from collections import deque

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import Blocks, median
from unisono.records import StepRecord

LOW = 0.05
READINGS = 200
FALLING = 0.01


class NoiseDominated(Statistical):
    """The gradients are mostly noise"""

    code, slug, severity = "UN405", "noise-dominated", "info"
    pattern = "Persistently Low"
    source = "direction consistency manual, section 3; McCandlish et al., An Empirical Model of Large-Batch Training"
    meaning = (
        "For 200 readings, less than 5 % of a worker's squared gradient was common to all workers, and the loss has "
        "not fallen by 1 % from one 200 readings to the next. The batch of one worker is then more than twenty times "
        "smaller than the noise scale. This is no fault: it says what limits training now."
    )
    correction = (
        "The manual calls a cosine near zero a fault. With small batches it is the rule: healthy runs have cosines of "
        "0.01 to 0.08 after a few hundred steps, and below zero in a third of the steps."
    )
    needs = "400 readings of the workers' directions with the loss"
    causes = {
        "small-batch": "the batch is small compared with the noise of its gradients",
        "learning-rate": "the learning rate is too high to get closer to the minimum",
        "converged": "the model has learnt what it can from these data",
    }
    remedies = {
        "small-batch": ("if the loss should still fall: use larger batches or accumulate gradients over more of them",),
        "learning-rate": ("if the loss should still fall: lower the learning rate now",),
        "converged": ("compare with the loss you expect; if it is reached, nothing is wrong",),
    }

    def forget(self) -> None:
        self._common: deque[float] = deque(maxlen=READINGS)
        self._losses = Blocks(READINGS, 2)

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if record.cos_expected is None or record.loss_mean is None:
            return
        self._common.append(record.cos_expected)
        if not self._losses.add(record.loss_mean) or not self._losses.full:
            return
        before, now = self._losses.medians
        if max(self._common) < LOW and now >= before - FALLING * abs(before):
            self._remark(record, run_state, before, now)
        else:
            self.passed(record.step)

    def _remark(self, record: StepRecord, run_state: RunState, before: float, now: float) -> None:
        common = median(self._common)
        evidence: dict[str, float | int | str] = {"cos_expected": round(common, 4), "loss": now, "loss_before": before}
        self.report(
            record.step,
            run_state,
            why=f"{100 * common:.2g} % of the gradient is common to all workers; the loss stays at {now:.4g}",
            causes={"small-batch": 0.5, "learning-rate": 0.3, "converged": 0.3},
            evidence=evidence,
        )
