"""What the rules share that first learn what is usual in a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from unisono.records import AttemptRecord, StepRecord
from unisono.rules._rule import Rule
from unisono.rules._scene import Scene


class Course:
    """Which steps can be compared with those before, and when all that was learnt has to be forgotten."""

    SHORT = 0.7
    SLOWLY = 10
    UNUSUAL_IN_A_ROW = 11
    JUMP = 1.5
    """A learning rate that changes by more than this factor from one step to the next; schedules change it smoothly."""

    def __init__(self) -> None:
        self.broken = False
        self.jumped = False
        self.replicas_differ = False
        self._attempt: int | None = None
        self._workers = 0
        self._rate: float | None = None
        self._samples = 0.0
        self._unusual = 0

    def follow(self, record: StepRecord) -> bool:
        """Whether the step can be compared. Sets `broken` (a new attempt, other workers, another batch size) and
        `jumped` (another learning rate)."""
        self.jumped = self._rate_jumps(record.lr)
        self.broken = self._starts_anew(record)
        if "weights" in record.audits:
            self.replicas_differ = bool(record.weights_W)
        usual = self._has_usual_size(record)
        return usual and not record.skipped and _is_finite(record)

    def _starts_anew(self, record: StepRecord) -> bool:
        workers = len(record.loss_W or record.norm_W or record.compute_W)
        changed = record.attempt != self._attempt or bool(workers and self._workers and workers != self._workers)
        if changed:
            self.replicas_differ = False
            self._samples, self._unusual = 0.0, 0
        self._attempt, self._workers = record.attempt, workers or self._workers
        return changed

    def _rate_jumps(self, rate: float | None) -> bool:
        before, self._rate = self._rate, self._rate if rate is None else rate
        if rate is None or before is None or rate == before:
            return False
        return min(rate, before) <= 0 or max(rate, before) > self.JUMP * min(rate, before)

    def _has_usual_size(self, record: StepRecord) -> bool:
        """Not the short last batch of an epoch; after many of another size that size is the usual one."""
        if not record.samples_W or None in record.samples_W:
            return True
        total = float(sum(samples or 0 for samples in record.samples_W))
        usual = self._samples or total
        if self.SHORT * usual <= total <= usual / self.SHORT:
            self._samples = usual + (total - usual) / self.SLOWLY
            self._unusual = 0
            return True
        self._unusual += 1
        if self._unusual < self.UNUSUAL_IN_A_ROW:
            return False
        self._samples, self._unusual = total, 0
        self.broken = True
        return True


class Statistical(Rule):
    """Passes on the steps that can be compared, and forgets what it learnt when they no longer can."""

    forgets_at_jumps: ClassVar[bool] = True
    """Whether a sudden change of the learning rate makes the past useless; it does not where workers are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.course = Course()
        self.forget()

    def on_attempt(self, record: AttemptRecord, scene: Scene) -> None:
        self.course = Course()
        self.forget()

    def on_step(self, record: StepRecord, scene: Scene) -> None:
        usable = self.course.follow(record)
        if self.course.broken or (self.course.jumped and self.forgets_at_jumps):
            self.forget()
        if usable:
            self.hear(record, scene)

    def forget(self) -> None:
        raise NotImplementedError

    def hear(self, record: StepRecord, scene: Scene) -> None:
        raise NotImplementedError


def logs(value_W: Sequence[float | None], floor: float = 0.0) -> list[float] | None:
    """Logarithms, where all values are known, finite and above zero (or raised to a floor above it)."""
    logs_W = []
    for value in value_W:
        if value is None or not math.isfinite(value) or max(value, floor) <= 0:
            return None
        logs_W.append(math.log(max(value, floor)))
    return logs_W if len(logs_W) > 1 else None


def new_batches(record: StepRecord) -> bool:
    """Whether the workers' batches can be compared: somebody who repeats one batch differs from the others for ever.

    Unknown batches count as new, except between two workers, where nothing else could tell.
    """
    return record.fresh if batches_known(record) else len(record.loss_W or record.norm_W) > 2


def batches_known(record: StepRecord) -> bool:
    return bool(record.compared or record.indexed)


def _is_finite(record: StepRecord) -> bool:
    if False in record.finite_W or any(record.nonfinite_W):
        return False
    return record.loss_mean is None or math.isfinite(record.loss_mean)
