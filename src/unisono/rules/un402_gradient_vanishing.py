"""UN402: the norm of the averaged gradient a tiny part of what it was at the start, and nothing learnt."""

from __future__ import annotations

from unisono.history import Window
from unisono.records import StepRecord
from unisono.rules._scene import Scene
from unisono.rules._statistical import Statistical

VANISHED = 1e-4
EARLY = 50
LASTING = 50
FIRST_LOSSES = 5
LEARNT = 0.02
"""A loss that has fallen by this share has been learnt from: then a small gradient is success."""


class GradientVanishing(Statistical):
    """The gradients have vanished before anything was learnt"""

    code, slug, severity = "UN402", "gradient-vanishing", "warning"
    pattern = "Gradient Vanishing"
    source = "global gradient norm manual, section 3"
    meaning = (
        "For 50 readings in a row the gradient norm has been below a ten-thousandth of its median over the first 50 "
        "readings, while the loss is within 2 % of its first values, or above: nothing was learnt, and nothing more "
        "will be."
    )
    correction = (
        "The manual alarms at a norm below 1e-5. The size of a norm depends on the model, the loss and its reduction; "
        "only its own past can say what is small, and a small gradient after the loss has fallen is success."
    )
    needs = "100 readings of the gradient norm with the loss"
    causes = {
        "underflow": "gradients underflow in half precision",
        "dead-layers": "activations are saturated or dead (learning rate too high early on, initialisation)",
        "architecture": "the path through the layers is too long without normalisation or residuals",
    }
    remedies = {
        "underflow": ("use bfloat16, or torch.amp.GradScaler with float16",),
        "dead-layers": ("lower the learning rate or add a warm-up; check the initialisation of the first layers",),
        "architecture": ("add residual connections or put normalisation before the layers",),
    }
    forgets_at_jumps = False

    def forget(self) -> None:
        self._early = Window(EARLY)
        self._losses = Window(FIRST_LOSSES)
        self._recent = Window(LASTING)
        self._small: list[int] = []

    def hear(self, record: StepRecord, scene: Scene) -> None:
        norm, loss = record.grad_norm, record.loss_mean
        if norm is None or loss is None:
            return
        if not self._losses.full:
            self._losses.add(loss)
        if not self._early.full:
            self._early.add(norm)
            return
        self._recent.add(loss)
        if norm >= VANISHED * self._early.median:
            self._small = []
            self.passed(record.step)
            return
        self._small = [*self._small[: LASTING - 1], record.step]
        if len(self._small) >= LASTING and not self._has_fallen():
            self._accuse(record, scene, norm)

    def _has_fallen(self) -> bool:
        first = self._losses.median
        return self._recent.median < first - LEARNT * abs(first)

    def _accuse(self, record: StepRecord, scene: Scene, norm: float) -> None:
        half = "16" in (scene.fact("model", "dtype") or "")
        ratio = norm / self._early.median if self._early.median > 0 else 0.0
        self.report(
            record.step,
            scene,
            why=(
                f"the gradient norm is {ratio:.1e} of its median over the first {EARLY} readings; "
                f"the loss is {self._recent.median:.4g}, it began at {self._losses.median:.4g}"
            ),
            causes={"underflow": 0.6 if half else 0.3, "dead-layers": 0.5, "architecture": 0.2},
            evidence={"norm_to_early_median": ratio, "loss": self._recent.median, "first_loss": self._losses.median},
            since=self._small[0],
        )
