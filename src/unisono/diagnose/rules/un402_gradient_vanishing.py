"""UN402: gradients a tiny part of what they were, of the loss or of what other layers have, or nothing at all."""

from __future__ import annotations

import math
from collections import deque

from unisono.diagnose.rules.shared.layer_growth import name
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.small_readings import LASTING, READINGS, FaintLayers, Stretch
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median, scatter
from unisono.records import Floats, StepRecord

VANISHED = 1e-4
"""Of the median over the first readings."""

NEAR_ZERO = 1e-5
"""The manual's number: here of the loss, and of 1 where the loss is larger."""

NOTHING = 1e-30
EARLY, RECENT = 50, 50
AT_THE_START = 100
"""Steps after which a gradient that was small from the first one on is told: the loss must have had time to move."""

BEGINNING, FIRST_LOSSES = 5, 25
LEARNT = 0.02
"""A loss that has fallen by this share has been learnt from: then a small gradient may be success."""

MUCH = 0.5
"""A loss that was at this share of its first values has been learnt from, whatever becomes of it."""

DONE = 1e-3
"""At this share of the first losses there may really be nothing left to learn."""

STUCK = 0.05
CLEAR = 3.0
AT_ONCE = 1e-3
"""Who arrives at the floor of the loss gets there step by step: a gradient that is gone at once has been lost."""

EVERY = 10
Said = tuple[str, dict[str, float], dict[str, float | str]]


class GradientVanishing(Statistical):
    """The gradients have vanished, or those of some layers"""

    code, slug, severity = "UN402", "gradient-vanishing", "warning"
    pattern = "Gradient Vanishing"
    source = "global gradient norm manual, section 3"
    meaning = (
        "For more than 50 steps, with 10 readings or more, one of these was true. The workers' gradient norms were "
        "below a ten-thousandth of their median over the first 50 readings, and either the loss is within 2 % of its "
        "first values or above, or the norm fell a thousandfold from one reading to the next while 5 % of the first "
        "loss or more is left. From the first step on, for 100 steps, the norms were below 1e-5 of the loss and below "
        "1e-5, and the loss did not move. The norm of a layer group that has a gradient was below a millionth of the "
        "largest group's, at three of four readings. Or the norms of all workers were exactly zero at more than half "
        "of the last 50 readings although the loss is not (5 % of its first value or more is left, or none was "
        "learnt), or loss and norms were exactly zero at every reading from the start."
    )
    correction = (
        "The manual alarms at a norm below 1e-5 while the loss is high. The size of a norm depends on the model, the "
        "loss and its reduction: a loss that is multiplied by 1e-6 learns as well. So the norm is held against the "
        "loss, its own past and the other layers. And a small gradient of the mean is success where the workers' own "
        "gradients are not small: they cancel out at the floor of the loss."
    )
    needs = "the losses and 10 readings of the gradient norm over 100 steps"
    causes = {
        "underflow": "gradients underflow in half precision",
        "initialisation": "the initial weights are so small or so large that nothing gets through",
        "dead-layers": "activations are saturated or dead (learning rate too high early on, initialisation)",
        "architecture": "the path through the layers is too long without normalisation or residuals (deep Post-LN)",
        "constant-loss": "the loss does not depend on the weights: one class, an empty mask, a detached tensor",
    }
    remedies = {
        "underflow": (
            "use bfloat16, or torch.amp.GradScaler with float16 (or a larger loss scale); accumulate gradients in FP32",
        ),
        "initialisation": (
            "use the initialisation made for the layers' widths (torch.nn.init.kaiming_*, xavier_*), or scale weights "
            "and learning rates with the width as muP does",
        ),
        "dead-layers": ("lower the learning rate or add a warm-up; check the initialisation of the first layers",),
        "architecture": ("add residual connections or put normalisation before the layers (Pre-LN)",),
        "constant-loss": (
            "print the targets, the mask and the shape of the model's output: a head of one class has nothing to learn",
        ),
    }
    explains = ("UN401", "UN406", "UN408", "UN411", "UN501")
    forgets_at_jumps = False

    def __init__(self) -> None:
        self._always_zero = True
        self._has_learnt = False
        """Much, at some time: gradients that were small from the start on were large enough for it."""

        super().__init__()

    def forget(self) -> None:
        self._early: list[float] = []
        self._early_median = 0.0
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._readings = self._judge_at = 0
        self._start: int | None = None
        self._last_norm = 0.0
        self._lost_at_once = False
        self._zeros: deque[bool] = deque(maxlen=RECENT)
        self._small, self._near_zero, self._layers = Stretch(), Stretch(), FaintLayers()

    @property
    def suspicious(self) -> bool:
        """A small gradient was heard, and it is too early for a word."""
        return self._readings > EARLY and (0 < self._small.readings < READINGS or self._layers.waiting)

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        loss = record.loss_mean
        if loss is None:
            return
        if self._start is None:
            self._start = self._judge_at = record.step
        norm = _own_norm(record)
        if norm is not None:
            self._hear_norm(norm, loss, record)
        if len(self._first) < FIRST_LOSSES:
            self._first.append(loss)
        self._recent.append(loss)
        self._always_zero = self._always_zero and loss == 0 and (norm or 0.0) <= NOTHING
        if norm is not None and record.step >= self._judge_at:
            self._judge_at = record.step + EVERY
            self._judge(record, run_state, norm)

    def _hear_norm(self, norm: float, loss: float, record: StepRecord) -> None:
        self._readings += 1
        self._zeros.append(norm <= NOTHING)
        is_small = norm < VANISHED * self._early_median and len(self._early) >= READINGS
        if not is_small and len(self._early) < EARLY:
            self._early.append(norm)
            self._early_median = median(self._early)
        if is_small and not self._small.readings:
            self._lost_at_once = norm < AT_ONCE * self._last_norm
        self._last_norm = norm
        self._small.add(is_small, record.step)
        self._near_zero.add(0 < norm < NEAR_ZERO * min(1.0, abs(loss)), record.step)
        self._layers.add(record.norm_G, record.step)

    def _judge(self, record: StepRecord, run_state: RunState, norm: float) -> None:
        zeros, steps = sum(self._zeros), record.step - (self._start or 0)
        faint = self._layers.found()
        if 2 * zeros > RECENT and self._always_zero:
            self._accuse(record, run_state, *self._nothing_to_learn())
        elif 2 * zeros > RECENT and self._is_above(STUCK if self._has_fallen() else DONE):
            self._accuse(record, run_state, *self._nothing(zeros, run_state))
        elif self._small.lasts and self._is_above(DONE) and self._is_stuck(norm):
            self._accuse(record, run_state, *self._against_early(norm, run_state), since=self._small.since)
        elif self._near_zero.readings == self._readings and steps >= AT_THE_START and not self._is_learning():
            self._accuse(record, run_state, *self._against_loss(norm, run_state), since=self._near_zero.since)
        elif faint:
            self._accuse(record, run_state, *self._against_layers(faint, record.norm_G, run_state))
        elif steps > LASTING and not (zeros or self._small.readings or self._layers.any):
            self.passed(record.step)

    @property
    def _first_loss(self) -> float:
        """Who learns within a few steps began higher than the median of the first losses."""
        return max(median(self._first[:BEGINNING]), median(self._first))

    def _is_above(self, share: float) -> bool:
        return median(self._recent) > share * abs(self._first_loss)

    def _has_fallen(self) -> bool:
        first = self._first_loss
        error = 1.25 * scatter(self._first) / math.sqrt(len(self._first))
        return median(self._recent) < first - max(LEARNT * abs(first), CLEAR * error)

    def _is_learning(self) -> bool:
        """The loss has fallen; once it has fallen by half, also at a plateau and after a restart."""
        self._has_learnt = self._has_learnt or 0 < median(self._recent) <= MUCH * self._first_loss
        return self._has_learnt or self._has_fallen()

    def _is_stuck(self, norm: float) -> bool:
        """Nothing was learnt; or the gradient went at once, much is left to learn, and the loss has not moved since."""
        if not self._has_fallen():
            return True
        losses = list(self._recent)
        half = len(losses) // 2
        moves = median(losses[half:]) < (1 - LEARNT) * median(losses[:half])
        tiny = norm < NEAR_ZERO * abs(median(losses))
        return self._lost_at_once and tiny and not moves and self._is_above(STUCK)

    def _nothing_to_learn(self) -> Said:
        said = f"loss and gradient were exactly zero at all of the last {len(self._zeros)} readings, from the start on"
        return said, {"constant-loss": 0.9}, {"zero_readings": len(self._zeros)}

    def _nothing(self, count: int, run_state: RunState) -> Said:
        said = f"every worker's gradient norm was zero at {count} of the last {RECENT} readings"
        dead = 0.75 if _is_single(run_state) else 0.5
        return said, {"underflow": 0.7, "dead-layers": dead, "constant-loss": 0.3}, {"zero_readings": count}

    def _against_early(self, norm: float, run_state: RunState) -> Said:
        ratio = norm / self._early_median
        causes = {"underflow": 0.6 if _is_half(run_state) else 0.3, "dead-layers": 0.5, "architecture": 0.2}
        said = f"the workers' gradient norms are {ratio:.1e} of their median over the first {len(self._early)} readings"
        return said, causes, {"norm_to_early_median": ratio}

    def _against_loss(self, norm: float, run_state: RunState) -> Said:
        causes = {"initialisation": 0.7, "architecture": 0.4, "underflow": 0.6 if _is_half(run_state) else 0.3}
        said = f"the workers' gradient norms have been near zero from the start on, now {norm:.1e}"
        return said, causes, {"norm": norm}

    def _against_layers(self, faint: list[int], norm_G: Floats, run_state: RunState) -> Said:
        names = ", ".join(name(group, run_state) for group in faint[:4]) + (", ..." if len(faint) > 4 else "")
        largest = max(norm for norm in norm_G if norm is not None)
        ratio = max(norm_G[group] or 0.0 for group in faint) / largest
        likely = {"dead-layers": 0.7} if self._layers.was_strong & set(faint) else {"initialisation": 0.7}
        deep = {"architecture": 0.8 if self._layers.fades else 0.4}
        causes = likely | deep | {"underflow": 0.6 if _is_half(run_state) else 0.2}
        said = (
            f"the gradient norm of {names} is {ratio:.1e} of the largest layer group's, for more than {LASTING} steps"
        )
        return said, causes, {"norm_to_largest_group": ratio, "where": names}

    def _accuse(
        self,
        record: StepRecord,
        run_state: RunState,
        said: str,
        causes: dict[str, float],
        evidence: dict[str, float | str],
        since: int | None = None,
    ) -> None:
        loss, first = median(self._recent), self._first_loss
        self.report(
            record.step,
            run_state,
            why=f"{said}; the loss is {loss:.4g}, it began at {first:.4g}",
            causes=causes,
            evidence=evidence | {"loss": loss, "first_loss": first},
            since=since,
        )


def _own_norm(record: StepRecord) -> float | None:
    """The largest of the workers' own: their mean may cancel to zero, and a batch that meets all margins has none."""
    return max((norm for norm in record.norm_W if norm is not None), default=record.grad_norm)


def _is_half(run_state: RunState) -> bool:
    return "16" in (run_state.fact("model", "dtype") or "")


def _is_single(run_state: RunState) -> bool:
    return "32" in (run_state.fact("model", "dtype") or "")
