"""UN401: the norm of the averaged gradient far above its own recent past."""

from __future__ import annotations

from unisono.history import Window, medians_of_others
from unisono.records import StepRecord
from unisono.rules._scene import Scene
from unisono.rules._statistical import Statistical

HOT = 10.0
PAST = 50
LEARNT = 10
SUSTAINED = 3
LASTING = 10
RAISED = 1.5
"""A loss above this multiple of its usual value has clearly risen."""

LEADING = 5.0


class GradientExplosion(Statistical):
    """The gradients have become far too large"""

    code, slug, severity = "UN401", "gradient-explosion", "critical"
    pattern = "Gradient Explosion"
    source = "global gradient norm manual, section 3"
    meaning = (
        "The norm of the averaged gradient (before clipping) is more than 10 times the median of its last 50 calm "
        "readings. One reading that returns by itself is a remark, or a warning if the loss rose too; three readings "
        "in a row with a loss that has not fallen are a warning; ten, with a loss half above its usual value that does "
        "not come down, are critical."
    )
    correction = (
        "The manual alarms at a spike score (GSS) above 2. The literature has three different definitions of that "
        "score, and a norm above twice its moving average occurs in up to 3,900 of a million healthy steps."
    )
    needs = "10 readings of the gradient norm"
    causes = {
        "bad-data": "one worker's batch was corrupted or extreme",
        "learning-rate": "the learning rate is too high here (or its warm-up too short)",
        "momentum": "an earlier extreme step is still in the optimizer's momentum",
    }
    remedies = {
        "bad-data": ("look at that worker's batches around the step (`unisono batches RUN`) and filter them",),
        "learning-rate": (
            "go back to a checkpoint before the step; lower the learning rate or lengthen its warm-up",
            "clip gradients with torch.nn.utils.clip_grad_norm_",
        ),
        "momentum": ("restart from a checkpoint before the step with a new optimizer state, or skip such steps",),
    }
    explains = ("UN403", "UN406", "UN408", "UN411")

    def forget(self) -> None:
        self._norms, self._losses = Window(PAST), Window(PAST)
        self._clipped = False
        self._hot: list[StepRecord] = []

    def hear(self, record: StepRecord, scene: Scene) -> None:
        norm = self._norm(record)
        if norm is None or norm <= 0:
            return
        if len(self._norms) >= LEARNT and norm > HOT * self._norms.median:
            self._hot = [*self._hot[: LASTING - 1], record]
            if len(self._hot) >= SUSTAINED:
                self._accuse(record, scene, norm / self._norms.median)
            return
        self._calm(record, scene, norm)

    def _norm(self, record: StepRecord) -> float | None:
        """What the user's clipping returned is known at every step; two sources in one series could have two scales."""
        if record.clip_norm is not None and not self._clipped:
            self.forget()
            self._clipped = True
        return record.clip_norm if self._clipped else record.grad_norm

    def _calm(self, record: StepRecord, scene: Scene, norm: float) -> None:
        spike = self._hot[-1] if 0 < len(self._hot) < SUSTAINED else None
        peak = self._norm(spike) if spike is not None else None
        if spike is not None and peak is not None:
            self._accuse(spike, scene, peak / self._norms.median, over=True)
        elif len(self._norms) >= LEARNT:
            self.passed(record.step)
        self._hot = []
        self._norms.add(norm)
        if record.loss_mean is not None:
            self._losses.add(record.loss_mean)

    def _accuse(self, record: StepRecord, scene: Scene, ratio: float, *, over: bool = False) -> None:
        led = _leader(record)
        after = ", and came back" if over else f" for {len(self._hot)} readings or more"
        self.report(
            record.step,
            scene,
            why=f"the gradient norm was {ratio:.3g} times the median of its last {PAST} calm readings{after}",
            causes=_causes(led, over),
            workers=() if led is None else (led,),
            severity=self._severity(record, over),
            evidence={"norm_to_recent_median": round(ratio, 3)} | self._loss_evidence(record),
            since=self._hot[0].step,
        )

    def _severity(self, record: StepRecord, over: bool) -> str:
        loss = record.loss_mean
        if loss is None or not len(self._losses):
            return "info" if over else "warning"
        raised = loss > RAISED * self._losses.median > 0
        if over:
            return "warning" if raised else "info"
        if loss < self._losses.median:
            return "info"
        first = self._hot[0].loss_mean
        lasting = len(self._hot) == LASTING and first is not None and loss >= first
        return "critical" if raised and lasting else "warning"

    def _loss_evidence(self, record: StepRecord) -> dict[str, float]:
        if record.loss_mean is None or not len(self._losses):
            return {}
        return {"loss": record.loss_mean, "usual_loss": self._losses.median}


def _leader(record: StepRecord) -> int | None:
    """The worker whose own gradient is far longer than the others', if there is one and it can be told."""
    norm_W = [norm for norm in record.norm_W if norm is not None]
    if len(norm_W) < 3 or len(norm_W) < len(record.norm_W):
        return None
    longest = max(range(len(norm_W)), key=norm_W.__getitem__)
    return longest if norm_W[longest] > LEADING * medians_of_others(norm_W)[longest] else None


def _causes(led: int | None, over: bool) -> dict[str, float]:
    if led is not None:
        return {"bad-data": 0.7, "momentum": 0.2}
    return {"bad-data": 0.5, "learning-rate": 0.4} if over else {"learning-rate": 0.6, "momentum": 0.3, "bad-data": 0.3}
