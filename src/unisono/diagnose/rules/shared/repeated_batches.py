"""Gradients of workers that go through the same batches again and again. W = workers, B = batches.

Somebody who repeats its batches differs from the others for ever, by what happens to be in them. So each batch has one
say, by its newest reading, however often it comes: what is left is a comparison of B batches of each worker, which are
as good as drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.diagnose.rules.shared.log_values import logs
from unisono.diagnose.statistics import gaps_to_others
from unisono.records import StepRecord

FEWEST, MOST = 6, 256
FAR = 10.0
"""Standard errors of a mean over the batches that are none of chance, however often one looks."""

ALIKE = 1 / 3
"""Share of the difference that none of the others may reach."""

LEAST_NORM, LEAST_COSINE = math.log(1.2), 0.1
LOSS_CLEAR = 3.0
STEEPEST = 1.5


@dataclass(frozen=True, slots=True)
class BatchGaps:
    """Each worker's gap to the others, of logarithms."""

    norm_W: Sequence[float]
    loss_W: Sequence[float]
    cosine_W: Sequence[float]


@dataclass(frozen=True, slots=True)
class Repeated:
    worker: int
    sign: str
    """`norm` or `cosine`."""

    level: float
    batches: int


class RepeatedBatches:
    def __init__(self) -> None:
        self._records: dict[int, StepRecord] = {}
        """By the step at which their batches were first read, the newest reading last."""

    @property
    def ready(self) -> bool:
        return len(self._records) >= FEWEST

    def hear(self, record: StepRecord) -> None:
        first = record.step if record.repeats is None else record.repeats
        self._records.pop(first, None)
        self._records[first] = record
        if len(self._records) > MOST:
            del self._records[next(iter(self._records))]

    def apart(self) -> Repeated | None:
        """The one worker that stays apart from others that are alike, while its losses do not."""
        rows = [row for record in self._records.values() if (row := _row(record)) is not None]
        if len(rows) < FEWEST or len({len(row.norm_W) for row in rows}) > 1:
            return None
        losses_BW = [row.loss_W for row in rows]
        slope = _slope([row.norm_W for row in rows], losses_BW)
        rest_BW = [[norm - slope * loss for norm, loss in zip(row.norm_W, row.loss_W, strict=True)] for row in rows]
        found = _outlier(rest_BW, "norm", LEAST_NORM)
        if found is None and all(row.cosine_W for row in rows):
            lower = _outlier([row.cosine_W for row in rows], "cosine", LEAST_COSINE)
            found = lower if lower is not None and lower.level < 0 else None
        return None if found is None or abs(_errors(losses_BW)[found.worker]) > LOSS_CLEAR else found


def _row(record: StepRecord) -> BatchGaps | None:
    norm_W, loss_W, workers = logs(record.norm_W), logs(record.loss_W), len(record.norm_W)
    if norm_W is None or loss_W is None or len(loss_W) != workers or workers < 3:
        return None
    known = [cosine for cosine in record.cos_W if cosine is not None]
    return BatchGaps(
        gaps_to_others(norm_W), gaps_to_others(loss_W), gaps_to_others(known) if len(known) == workers else []
    )


def _outlier(gap_BW: Sequence[Sequence[float]], sign: str, least: float) -> Repeated | None:
    level_W, far_W = _means(gap_BW), _errors(gap_BW)
    worst = max(range(len(level_W)), key=lambda worker: abs(level_W[worker]))
    others = [abs(level) for worker, level in enumerate(level_W) if worker != worst]
    level = level_W[worst]
    if abs(level) < least or abs(far_W[worst]) < FAR or max(others) > ALIKE * abs(level):
        return None
    return Repeated(worst, sign, level, len(gap_BW))


def _means(gap_BW: Sequence[Sequence[float]]) -> list[float]:
    return [sum(gap_B) / len(gap_B) for gap_B in zip(*gap_BW, strict=True)]


def _errors(gap_BW: Sequence[Sequence[float]]) -> list[float]:
    """The means in units of their standard error, from the scatter of all workers' batches."""
    mean_W, batches = _means(gap_BW), len(gap_BW)
    squares = sum((gap - mean) ** 2 for gap_W in gap_BW for gap, mean in zip(gap_W, mean_W, strict=True))
    error = math.sqrt(squares / (len(mean_W) * (batches - 1) * batches))
    return [mean / error if error else math.copysign(math.inf, mean) if mean else 0.0 for mean in mean_W]


def _slope(norm_BW: Sequence[Sequence[float]], loss_BW: Sequence[Sequence[float]]) -> float:
    """Batches with large losses have long gradients."""
    pairs = [pair for norm_W, loss_W in zip(norm_BW, loss_BW, strict=True) for pair in zip(norm_W, loss_W, strict=True)]
    squares = sum(loss * loss for _, loss in pairs)
    return min(STEEPEST, max(0.0, sum(norm * loss for norm, loss in pairs) / squares)) if squares else 0.0
