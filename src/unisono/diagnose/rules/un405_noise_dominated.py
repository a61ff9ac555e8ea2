"""UN405: the workers' gradients are mostly noise, or work against each other, and the loss no longer falls."""

from __future__ import annotations

import math
from collections import deque

from unisono.diagnose.rules.shared.recent_values import deviation
from unisono.diagnose.rules.shared.run_state import RunState, number
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median
from unisono.records import StepRecord

LOW = 0.05
READINGS, STEPS = 64, 200
"""A stretch has at least so many of both."""

FALLING = 0.01

FIGHT = 48
"""Readings over which cosines are averaged."""

NEGATIVE = 0.03
CLEAR, CLEAR_WHILE_LEARNING = 8.0, 24.0
"""Standard errors by which the mean is below what the division of few samples explains."""

OPPOSED = -0.5
"""Cosine of a worker's directions with the others', summed over a window of readings."""


class NoiseDominated(Statistical):
    """The gradients are mostly noise"""

    code, slug, severity = "UN405", "noise-dominated", "info"
    pattern = "Persistently Low"
    source = "direction consistency manual, section 3; McCandlish et al., An Empirical Model of Large-Batch Training"
    meaning = (
        "Over a stretch of 64 readings and 200 steps, less than 5 % of a worker's squared gradient was common to all "
        "workers, and the loss was not 1 % lower than in the stretch before. The batch of one worker is then more than "
        "twenty times smaller than the noise scale. This is no fault: it says what limits training now. Told apart "
        "from it are workers that fight: over 48 readings the cosines between them are below zero by more than eight "
        "times the error of their mean (24 times where the loss falls), and each worker's summed directions point "
        "against the others'. Gradients of samples that are drawn from the same data are never opposed on average; "
        "noise does not explain it, and larger batches do not help."
    )
    correction = (
        "The manual calls a cosine near zero a fault. With small batches it is the rule: healthy runs have cosines of "
        "0.01 to 0.08 after a few hundred steps, and below zero in a third of the steps."
    )
    needs = "128 readings of the workers' directions with the loss, over 400 steps"
    causes = {
        "conflicting-data": "the workers' data contradict each other: other labels, other tasks for the same inputs",
        "small-batch": "the batch is small compared with the noise of its gradients",
        "learning-rate": "the learning rate is too high to get closer to the minimum",
        "converged": "the model has learnt what it can from these data",
    }
    remedies = {
        "conflicting-data": (
            "compare what different workers read for the same kind of input: label maps, class order, preprocessing, "
            "task; and shuffle across sources before sharding",
        ),
        "small-batch": (
            "if the loss should still fall: use larger batches, or accumulate gradients over more of them",
            "or raise the momentum (or Adam's first beta), which averages over more steps",
        ),
        "learning-rate": ("if the loss should still fall: lower the learning rate now",),
        "converged": ("compare with the loss you expect; if it is reached, nothing is wrong",),
    }

    def forget(self) -> None:
        self._stretch: list[StepRecord] = []
        self._loss_before: float | None = None
        self._cosines: deque[float] = deque(maxlen=FIGHT)
        self._fight_losses: deque[float] = deque(maxlen=FIGHT)
        self._summed: list[float] = []
        self._window: int | None = None

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if record.cos_expected is None or record.loss_mean is None:
            return
        fights = self._fights(record, run_state)
        self._stretch.append(record)
        ended = len(self._stretch) >= READINGS and record.step - self._stretch[0].step >= STEPS - 1
        if fights:
            self._accuse(record, run_state)
        elif ended and self._loss_before is not None:
            self._judge(record, run_state, self._loss_before)
        if ended:
            self._loss_before, self._stretch = self._loss, []

    @property
    def _loss(self) -> float:
        return median([one.loss_mean or 0.0 for one in self._stretch])

    def _judge(self, record: StepRecord, run_state: RunState, before: float) -> None:
        common = [one.cos_expected or 0.0 for one in self._stretch]
        if max(common) < LOW and self._loss >= before - FALLING * abs(before):
            self._remark(record, run_state, median(common), before, self._loss)
        else:
            self.passed(record.step)

    def _fights(self, record: StepRecord, run_state: RunState) -> bool:
        # Whoever repeats a batch of its own, on purpose, may well oppose the others.
        if record.cos_mean is None or record.loss_mean is None or (record.compared and not record.fresh):
            return False
        self._follow_window(record)
        self._cosines.append(record.cos_mean)
        self._fight_losses.append(record.loss_mean)
        if len(self._cosines) < FIGHT or self._mean >= -NEGATIVE or not self._is_opposed():
            return False
        error = deviation(self._cosines) / math.sqrt(FIGHT)
        losses = list(self._fight_losses)
        before, now = median(losses[: FIGHT // 2]), median(losses[FIGHT // 2 :])
        clear = CLEAR if now >= before - FALLING * abs(before) else CLEAR_WHILE_LEARNING
        return self._mean < 2 * _of_few_samples(record, run_state) - clear * error

    @property
    def _mean(self) -> float:
        return sum(self._cosines) / len(self._cosines)

    def _follow_window(self, record: StepRecord) -> None:
        """Windows end when the next one begins."""
        if record.window_start is None or None in record.window_cos_W or not record.window_cos_W:
            return
        if record.window_start != self._window:
            self._window, self._summed = record.window_start, [*self._summed[-1:], 0.0]
        self._summed[-1] = median([cosine or 0.0 for cosine in record.window_cos_W])

    def _is_opposed(self) -> bool:
        return len(self._summed) == 2 and max(self._summed) < OPPOSED

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        self.report(
            record.step,
            run_state,
            why=(
                f"the workers fight: the mean cosine between their gradients is {self._mean:.3g} over {FIGHT} "
                f"readings, which noise does not explain; the loss is {median(self._fight_losses):.4g}"
            ),
            causes={"conflicting-data": 0.8},
            evidence={"cos_mean": round(self._mean, 4), "window_cos": round(max(self._summed), 3)},
        )

    def _remark(self, record: StepRecord, run_state: RunState, common: float, before: float, now: float) -> None:
        evidence: dict[str, float | int | str] = {"cos_expected": round(common, 4), "loss": now, "loss_before": before}
        self.report(
            record.step,
            run_state,
            why=f"{100 * common:.2g} % of the gradient is common to all workers; the loss stays at {now:.4g}",
            causes={"small-batch": 0.5, "learning-rate": 0.3, "converged": 0.3},
            evidence=evidence,
        )


def _of_few_samples(record: StepRecord, run_state: RunState) -> float:
    """The cosine of batches that few samples are divided into: what one has of them, the others have not."""
    size, batch = number(run_state.fact("loader", "dataset")), max((n or 0 for n in record.samples_W), default=0)
    if size is None or not batch:
        return 0.0
    return -1.0 if size <= 2 * batch else -batch / (size - batch)
