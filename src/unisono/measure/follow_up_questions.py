"""What rank 0 asks the others when a step looks odd: which parameters differ, how far apart they are, what was read."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unisono.listen.listening_plan import Announcement
from unisono.records import StepRecord

MOST_AUDITS, STEPS_BETWEEN_AUDITS = 20, 16
MOST_DETAILS, STEPS_BETWEEN_DETAILS = 5, 500
MOST_BATCHES, STEPS_BETWEEN_BATCHES = 50, 20
FAR_OFF = 10.0
"""A loss this many times as far from its peers as losses have been on average is worth a question."""

LEARNED_AFTER = 50


class FollowUpQuestions:
    def __init__(self) -> None:
        self._asked: dict[str, list[int]] = {"audit": [], "detail": [], "batch": []}
        self._usual = 0.0
        self._steps = 0

    def about(self, record: StepRecord, soon: int, guarded: bool = False) -> Iterator[Announcement]:
        """Questions raised by a step; `soon` is the next step that can be arranged beforehand.

        :param guarded: The guard has skipped it, not a loss scaler.
        """
        if record.weights_W:
            if self._may("audit", record.step, MOST_AUDITS, STEPS_BETWEEN_AUDITS):
                yield Announcement(start=soon, audit_of=record.step)
            if self._may("detail", record.step, MOST_DETAILS, STEPS_BETWEEN_DETAILS):
                yield Announcement(start=soon, detail=True)
        worker = self._odd_worker(record, guarded)
        if worker is not None and self._may("batch", record.step, MOST_BATCHES, STEPS_BETWEEN_BATCHES):
            yield Announcement(start=soon, batch_of=record.step, worker=worker)

    def _may(self, what: str, step: int, most: int, between: int) -> bool:
        asked = self._asked[what]
        allowed = len(asked) < most and (not asked or step - asked[-1] >= between)
        if allowed:
            asked.append(step)
        return allowed

    def _odd_worker(self, record: StepRecord, guarded: bool) -> int | None:
        """The worker whose batch stands out, if one does."""
        for worker, finite in enumerate(record.finite_W):
            if finite is False and (guarded or not record.skipped):
                return worker
        losses = [loss for loss in record.loss_W if loss is not None and math.isfinite(loss)]
        if len(losses) < len(record.loss_W) or len(losses) < 2:
            return None
        middle = sorted(losses)[(len(losses) - 1) // 2]
        gaps = [abs(loss - middle) for loss in losses]
        usual, largest = self._usual, max(gaps)
        self._steps += 1
        self._usual += (sum(gaps) / len(gaps) - usual) / min(self._steps, LEARNED_AFTER)
        return gaps.index(largest) if self._steps > LEARNED_AFTER and largest > FAR_OFF * usual > 0 else None
