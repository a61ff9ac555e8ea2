"""Which steps of a run can be compared with those before. Worked out once per record, for all rules."""

from __future__ import annotations

import math

from unisono.diagnose.rules.shared.log_values import logs
from unisono.records import StepRecord


class ComparableSteps:
    SHORT = 0.7
    SLOWLY = 10
    CLOSE = 0.01
    UNUSUAL_IN_A_ROW = 11
    JUMP = 1.5
    """A learning rate that changes by more than this factor from one step to the next; schedules change it smoothly."""

    TURMOIL = 50
    """Steps after a jump upwards, in which training may go to pieces in places."""

    def __init__(self) -> None:
        self.usable = False
        """The newest step can be compared with those before."""

        self.broken = False
        """Nothing before it can: a new attempt, other workers, another batch size."""

        self.jumped = False
        """The learning rate has suddenly changed."""

        self.turned = False
        """Either of the two."""

        self.calm = False
        """The newest step is usable, and nothing has turned."""

        self.turmoil = False
        """The learning rate has suddenly risen: a worker that stands out now may only be the first to suffer."""

        self.replicas_differ = False
        self.unequal = False
        """The workers' batches are not of one size."""

        self.log_loss_W: list[float] | None = None
        """Of the newest step, if it is usable and all losses are positive numbers."""

        self._calm_at = 0
        self._attempt: int | None = None
        self._workers = 0
        self._rate: float | None = None
        self._samples = 0.0
        self._samples_W: tuple[int | None, ...] = ()
        self._newest_samples_W: tuple[int | None, ...] = ()
        self._unusual = 0

    def follow(self, record: StepRecord) -> None:
        rate = record.lr
        self.jumped = rate != self._rate and self._rate_jumps(rate, record.step)
        workers = len(record.loss_W or record.norm_W or record.compute_W)
        self.broken = record.attempt != self._attempt or workers != self._workers
        if self.broken:
            self._start_anew(record, workers)
        if "weights" in record.audits:
            self.replicas_differ = bool(record.weights_W)
        if record.samples_W != self._newest_samples_W:
            self._newest_samples_W, self.unequal = record.samples_W, len(set(record.samples_W)) > 1
        # Nearly all steps have batches as the one before.
        usual = (record.samples_W == self._samples_W and not self._unusual) or self._has_usual_size(record)
        self.turned = self.broken or self.jumped
        self.turmoil = record.step < self._calm_at
        # A loss scaler skips what overflowed. What steering skips is as good as any: the workers only did not agree.
        skipped = record.skipped and record.kept_workers != 0
        self.usable = usual and not skipped and _is_finite(record)
        self.calm = self.usable and not self.turned
        self.log_loss_W = logs(record.loss_W) if self.usable else None

    def _start_anew(self, record: StepRecord, workers: int) -> None:
        """Unless it was only a step without any numbers of the workers."""
        self.broken = record.attempt != self._attempt or bool(workers and self._workers)
        if self.broken:
            self.replicas_differ, self._calm_at = False, 0
            self._samples, self._unusual, self._samples_W = 0.0, 0, ()
        self._attempt, self._workers = record.attempt, workers or self._workers

    def _rate_jumps(self, rate: float | None, step: int) -> bool:
        if rate is None:
            return False
        before, self._rate = self._rate, rate
        if before is None or max(rate, before) <= self.JUMP * min(rate, before):
            return False
        if rate > before:
            self._calm_at = step + self.TURMOIL
        return True

    def _has_usual_size(self, record: StepRecord) -> bool:
        """Not the short last batch of an epoch; after many of another size that size is the usual one."""
        known = [samples for samples in record.samples_W if samples is not None]
        if not known or len(known) < len(record.samples_W):
            return True
        total = float(sum(known))
        usual = self._samples or total
        if self.SHORT * usual <= total <= usual / self.SHORT:
            self._samples, self._unusual = usual + (total - usual) / self.SLOWLY, 0
            self._samples_W = record.samples_W if abs(total - self._samples) < self.CLOSE * total else ()
            return True
        self._unusual += 1
        if self._unusual < self.UNUSUAL_IN_A_ROW:
            return False
        self._samples, self._samples_W, self._unusual = total, record.samples_W, 0
        self.broken = True
        return True


def _is_finite(record: StepRecord) -> bool:
    if False in record.finite_W or any(record.nonfinite_W):
        return False
    return record.loss_mean is None or math.isfinite(record.loss_mean)
