"""UN412: the training loss keeps falling, and the validation numbers that the script records no longer improve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.statistics import median
from unisono.records import AttemptRecord, StepRecord, ValidationRecord

WINDOWS = (9, 18, 36, 72)
"""Points looked back upon, in thirds: a faint stall in much noise takes the longer ones."""

MOST = 96
"""Points that are kept. Then neighbours are merged, so that a window is always a good part of the run."""

EARLIER = 3
"""Points before a window, at least. Their medians are where the run started."""

FALLS = 0.05
"""Share of the loss's whole fall by which it must fall from each third of a window to the next."""

LEARNT = 0.2
"""Share of the loss's whole fall that must lie before a window: it is compared with what that brought."""

SHARE = 0.25
"""Validation that gains less than this share of what the same fall of the loss used to bring has stalled."""

ERRORS = 5.0
"""Standard errors that are given to the validation, and that the fall of the loss must exceed."""

IMPROVES = 2.0
"""Standard errors above which a gain is one, however small."""

IN_A_ROW = 3
"""Points at which it must be so. One dip is no stall."""

LEAST_UNLIKE = 0.2
OF_MEDIANS = 1.25
"""The error of a median, in units of that of a mean."""


class Point(NamedTuple):
    """One validation, or several merged, with the mean training loss since the one before."""

    step: int
    validation: float
    loss: float


class Stall(NamedTuple):
    loss_before: float
    loss_now: float
    before: float
    now: float
    error: float
    expected: float
    """What the validation would have gained, had it gained as before."""

    @property
    def gain(self) -> float:
        return self.now - self.before

    @property
    def falls(self) -> bool:
        return self.gain + ERRORS * self.error < 0


class Curve:
    """The run so far in at most `MOST` points."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._each = 1
        self._open: list[Point] = []

    @property
    def long_enough(self) -> bool:
        return len(self.points) >= WINDOWS[0] + EARLIER

    def add(self, point: Point) -> bool:
        """Whether that completed a point of the curve."""
        self._open.append(point)
        if len(self._open) < self._each:
            return False
        self.points.append(_merged(self._open))
        self._open = []
        if len(self.points) == MOST:
            self.points = [_merged(self.points[at : at + 2]) for at in range(0, MOST, 2)]
            self._each *= 2
        return True

    def cut(self, step: int) -> None:
        """Forgets what was done from `step` on: a restart does it again."""
        self.points = [point for point in self.points if point.step < step]
        self._open = [point for point in self._open if point.step < step]

    def stall(self) -> Stall | None:
        """In the shortest window that has one."""
        for size in WINDOWS:
            if len(self.points) >= size + EARLIER:
                found = self._stall_in(self.points[-size:])
                if found is not None:
                    return found
        return None

    def _stall_in(self, window: Sequence[Point]) -> Stall | None:
        third = len(window) // 3
        thirds = [window[at : at + third] for at in range(0, len(window), third)]
        start_loss = median([point.loss for point in self.points[:EARLIER]])
        start = median([point.validation for point in self.points[:EARLIER]])
        losses = [median([point.loss for point in part]) for part in thirds]
        if not self._keeps_falling(start_loss, losses, _noise([point.loss for point in window]) / math.sqrt(third)):
            return None
        noise = _noise([point.validation for point in window])
        before, now = (sum(point.validation for point in part) / third for part in (thirds[0], thirds[-1]))
        gained = max(0.0, before - start - ERRORS * noise)
        expected = gained * (losses[0] - losses[-1]) / (start_loss - losses[0])
        stall = Stall(losses[0], losses[-1], before, now, noise * math.sqrt(2 / third), expected)
        least = SHARE * min(expected, self._ceiling() - before)
        stalls = stall.gain + ERRORS * stall.error < least and stall.gain < IMPROVES * stall.error
        return stall if stalls or stall.falls else None

    def _keeps_falling(self, start: float, losses: Sequence[float], error: float) -> bool:
        whole = start - losses[-1]
        steadily = all(earlier - later >= FALLS * whole for earlier, later in pairwise(losses))
        surely = losses[0] - losses[-1] >= ERRORS * OF_MEDIANS * math.sqrt(2) * error
        return whole > 0 and steadily and surely and start - losses[0] >= LEARNT * whole

    def _ceiling(self) -> float:
        """As much as the validation can reach: 1 or 100 for shares, 0 for a loss with its sign turned."""
        values = [point.validation for point in self.points]
        if max(values) <= 0:
            return 0.0
        return next((limit for limit in (1.0, 100.0) if min(values) >= 0 and max(values) <= limit), math.inf)


class ValidationStalls(Rule):
    """Training improves, validation does not"""

    code, slug, severity = "UN412", "validation-stalls", "warning"
    source = "gradient agreement filtering (arXiv 2412.18052), failure signatures"
    meaning = (
        "The training loss kept falling over a stretch of at least nine validations, and the numbers given to "
        "`monitor.record_validation(accuracy)` fell, or stayed where they were: they gained nothing that stands out "
        "from their noise and, by five standard errors, less than a quarter of what the same fall of the loss had "
        "brought before; and this at three validations in a row. What is learnt now holds for the training data "
        "alone. A validation that stays where it is because the loss has flattened, too, is healthy; one that never "
        "improved and does not fall says too little. The other signature in the source, gradients that are all further "
        "than 1.5 (cosine distance) from the rest, is UN601's, where unisono steers."
    )
    needs = "14 numbers from `monitor.record_validation(accuracy)`, which the script calls, and the loss between them"
    causes = {
        "too-little-data": "the training data are too few for this model, which learns them by heart",
        "noisy-labels": "wrong or contradicting labels are learnt by heart",
        "validation-differs": "the validation data are of another kind, or are treated in another way",
    }
    remedies = {
        "too-little-data": (
            "stop here, and keep the checkpoint of the step with the best validation (`best_step`)",
            "add data or augmentation, raise weight_decay or dropout, or use a smaller model",
        ),
        "noisy-labels": (
            "look for wrong labels among the batches that stood out: `unisono batches RUN`",
            "leave gradients that contradict each other out of the update: "
            "`attach(weighting=unisono.weightings.AgreementFilter(max_distance=0.97))`",
        ),
        "validation-differs": (
            "evaluate a part of the training data in the way of the validation: if that does not improve either, "
            "check model.eval() and the preprocessing",
        ),
    }

    def __init__(self) -> None:
        super().__init__()
        self._forget()

    def _forget(self) -> None:
        self._curve = Curve()
        self._sum, self._count = 0.0, 0
        self._in_a_row = 0
        self._goal = math.inf
        """Validation above this, after a stall, improves again."""

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._curve.cut(record.first_step)
        self._sum, self._count, self._in_a_row = 0.0, 0, 0

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if record.loss_mean is not None and run_state.comparable.usable:
            self._sum += record.loss_mean
            self._count += 1

    def on_validation(self, record: ValidationRecord, run_state: RunState) -> None:
        if not self._count or not math.isfinite(self._sum + record.validation):
            return
        point = Point(record.step, record.validation, self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if self._curve.add(point) and self._curve.long_enough:
            self._judge(record.step, run_state)

    def _judge(self, step: int, run_state: RunState) -> None:
        stall = self._curve.stall()
        self._in_a_row = self._in_a_row + 1 if stall is not None else 0
        if stall is not None and self._in_a_row >= IN_A_ROW:
            self._accuse(stall, step, run_state)
        # What was learnt by heart stays so when the loss has flattened.
        elif stall is None and (self.case is None or self._curve.points[-1].validation > self._goal):
            self.passed(step)

    def _accuse(self, stall: Stall, step: int, run_state: RunState) -> None:
        best = max(self._curve.points, key=lambda point: point.validation)
        self._goal = best.validation
        loss = f"the training loss fell from {stall.loss_before:.3g} to {stall.loss_now:.3g}"
        went = f"went from {stall.before:.4g} to {stall.now:.4g}"
        self.report(
            step,
            run_state,
            why=(
                f"{loss} while the validation {went}; its best was {best.validation:.4g} at step {best.step}"
                if stall.falls
                else f"{loss} while the validation {went}; as before it would have gained {stall.expected:.2g}"
            ),
            causes=(
                {"too-little-data": 0.6, "noisy-labels": 0.6, "validation-differs": 0.2}
                if stall.falls
                else {"too-little-data": 0.5, "noisy-labels": 0.4, "validation-differs": 0.3}
            ),
            evidence={
                "best_validation": round(best.validation, 6),
                "best_step": best.step,
                "validation_before": round(stall.before, 6),
                "validation_now": round(stall.now, 6),
                "loss_before": round(stall.loss_before, 6),
                "loss_now": round(stall.loss_now, 6),
            },
            since=best.step,
        )


def _merged(points: Sequence[Point]) -> Point:
    count = len(points)
    validation, loss = (sum(values) / count for values in list(zip(*points, strict=True))[1:])
    return Point(points[-1].step, validation, loss)


def _noise(values: Sequence[float]) -> float:
    """Standard deviation around a line, of values that count as independent: more where neighbours err alike."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    slope = sum((at - middle) * value for at, value in enumerate(values)) * 12 / (count**3 - count)
    around = sum((value - mean - slope * (at - middle)) ** 2 for at, value in enumerate(values)) / (count - 2)
    jumps = sum((later - earlier - slope) ** 2 for earlier, later in pairwise(values)) / 2 / (count - 1)
    unlike = min(1.0, jumps / around) if around > 0 else 1.0
    return math.sqrt(max(around, jumps) * (2 - unlike) / max(unlike, LEAST_UNLIKE))
