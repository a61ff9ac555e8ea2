"""UN402: gradients a tiny part of what they were, of what other layers have, or nothing at all, and nothing learnt."""

from __future__ import annotations

from collections import Counter, deque

from unisono.diagnose.rules.shared.layer_growth import name
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median
from unisono.records import Floats, StepRecord

VANISHED = 1e-4
NOTHING = 1e-30
FAINT = 1e-6
"""Of the layer group with the largest norm."""

EARLY = 50
LASTING = 50
EVERY = 10
FIRST_LOSSES = 5
LEARNT = 0.02
"""A loss that has fallen by this share has been learnt from: then a small gradient is success."""

DONE = 1e-3
"""At this share of the first losses there may really be nothing left to learn."""


class GradientVanishing(Statistical):
    """The gradients have vanished before anything was learnt"""

    code, slug, severity = "UN402", "gradient-vanishing", "warning"
    pattern = "Gradient Vanishing"
    source = "global gradient norm manual, section 3"
    meaning = (
        "One of three things. The gradient norm has been below a ten-thousandth of its median over the first 50 "
        "readings, for 50 readings in a row; or, for as long, the norm of a layer group that had a gradient has been "
        "below a millionth of the largest group's; both only while the loss is within 2 % of its first values, or "
        "above: nothing was learnt, and nothing more will be. Or the norm was zero at more than half of the last 50 "
        "readings, although the loss is not."
    )
    correction = (
        "The manual alarms at a norm below 1e-5. The size of a norm depends on the model, the loss and its reduction; "
        "only its own past and the other layers can say what is small, and a small gradient after the loss has fallen "
        "is success."
    )
    needs = "60 readings of the gradient norm with the loss"
    causes = {
        "underflow": "gradients underflow in half precision",
        "initialisation": "the initial weights are so small or so large that nothing gets through",
        "dead-layers": "activations are saturated or dead (learning rate too high early on, initialisation)",
        "architecture": "the path through the layers is too long without normalisation or residuals",
    }
    remedies = {
        "underflow": ("use bfloat16, or torch.amp.GradScaler with float16",),
        "initialisation": ("use the initialisation made for the layers' widths (torch.nn.init.kaiming_*, xavier_*)",),
        "dead-layers": ("lower the learning rate or add a warm-up; check the initialisation of the first layers",),
        "architecture": ("add residual connections or put normalisation before the layers",),
    }
    forgets_at_jumps = False

    def forget(self) -> None:
        self._early: list[float] = []
        self._early_median = 0.0
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=LASTING)
        self._readings = 0
        self._zeros: deque[int] = deque(maxlen=LASTING)
        self._small: deque[int] = deque(maxlen=LASTING)
        self._alive: set[int] = set()
        self._was_strong: set[int] = set()
        self._faint: Counter[int] = Counter()

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        norm, loss = record.grad_norm, record.loss_mean
        if norm is None or loss is None:
            return
        self._readings += 1
        self._recent.append(loss)
        if norm <= NOTHING:
            self._zeros.append(self._readings)
        if len(self._early) < EARLY:
            self._learn(norm, loss)
        elif norm < VANISHED * self._early_median:
            self._small.append(record.step)
        else:
            self._small.clear()
        if self._readings % EVERY == 0:
            self._compare_groups(record.norm_G)
            self._judge(record, run_state, norm)

    def _learn(self, norm: float, loss: float) -> None:
        self._early.append(norm)
        self._early_median = median(self._early) if len(self._early) == EARLY else 0.0
        if len(self._first) < FIRST_LOSSES:
            self._first.append(loss)

    def _compare_groups(self, norm_G: Floats) -> None:
        """A group without any gradient from the start is frozen, or not used."""
        largest = max((norm for norm in norm_G if norm is not None), default=0.0)
        for group, norm in enumerate(norm_G):
            if norm:
                self._alive.add(group)
            if norm is not None and group in self._alive and norm < FAINT * largest:
                self._faint[group] += 1
            else:
                self._faint[group] = 0
                self._was_strong.add(group)

    def _judge(self, record: StepRecord, run_state: RunState, norm: float) -> None:
        recent = sum(reading > self._readings - LASTING for reading in self._zeros)
        faint = [group for group, checks in self._faint.items() if checks * EVERY > LASTING]
        if 2 * recent > LASTING and self._is_at_least(DONE):
            self._accuse(record, run_state, *self._nothing(recent, run_state))
        elif len(self._small) == LASTING and not self._has_fallen():
            self._accuse(record, run_state, *self._against_early(norm, run_state))
        elif faint and not self._has_fallen():
            self._accuse(record, run_state, *self._against_layers(faint, record.norm_G, run_state))
        elif self._readings > LASTING and not self._small and not any(self._faint.values()):
            self.passed(record.step)

    def _is_at_least(self, share: float) -> bool:
        return median(self._recent) > share * abs(median(self._first))

    def _has_fallen(self) -> bool:
        first = median(self._first)
        return median(self._recent) < first - LEARNT * abs(first)

    def _nothing(self, count: int, run_state: RunState) -> tuple[str, dict[str, float], dict[str, float | str]]:
        said = f"the gradient norm was zero at {count} of the last {LASTING} readings"
        return said, {"underflow": 0.7, "dead-layers": 0.5}, {"zero_readings": count}

    def _against_early(self, norm: float, run_state: RunState) -> tuple[str, dict[str, float], dict[str, float | str]]:
        ratio = norm / self._early_median
        causes = {"underflow": 0.6 if _is_half(run_state) else 0.3, "dead-layers": 0.5, "architecture": 0.2}
        said = f"the gradient norm is {ratio:.1e} of its median over the first {EARLY} readings"
        return said, causes, {"norm_to_early_median": ratio}

    def _against_layers(
        self, faint: list[int], norm_G: Floats, run_state: RunState
    ) -> tuple[str, dict[str, float], dict[str, float | str]]:
        names = ", ".join(name(group, run_state) for group in faint[:4]) + (", ..." if len(faint) > 4 else "")
        largest = max(norm for norm in norm_G if norm is not None)
        ratio = max(norm_G[group] or 0.0 for group in faint) / largest
        likely = {"dead-layers": 0.7} if self._was_strong & set(faint) else {"initialisation": 0.7, "architecture": 0.4}
        causes = likely | {"underflow": 0.6 if _is_half(run_state) else 0.2}
        said = (
            f"the gradient norm of {names} is {ratio:.1e} of the largest layer group's, for {LASTING} readings or more"
        )
        return said, causes, {"norm_to_largest_group": ratio, "where": names}

    def _accuse(
        self,
        record: StepRecord,
        run_state: RunState,
        said: str,
        causes: dict[str, float],
        evidence: dict[str, float | str],
    ) -> None:
        loss, first = median(self._recent), median(self._first)
        self.report(
            record.step,
            run_state,
            why=f"{said}; the loss is {loss:.4g}, it began at {first:.4g}",
            causes=causes,
            evidence=evidence | {"loss": loss, "first_loss": first},
            since=self._small[0] if self._small else None,
        )


def _is_half(run_state: RunState) -> bool:
    return "16" in (run_state.fact("model", "dtype") or "")
