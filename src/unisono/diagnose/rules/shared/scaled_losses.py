"""Workers whose loss and gradient are those of the others times one factor. W = workers, G = layer groups."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from unisono.diagnose.rules.shared.log_values import logs
from unisono.diagnose.statistics import gaps_to_others, median, scatter
from unisono.records import StepRecord

RECENT, EVERY = 128, 8
ENOUGH, DECIDED = 32, 64
LEAST = math.log(1.2)
CLOSE, SURE = 0.02, 0.04
"""The factors of loss and norm agree to so much, or to 2.5 standard errors of at most `SURE`."""

EVEN = 0.1
STILL = 0.5
"""Share of what was found below which it is over."""

FEW_GROUPS = 2


@dataclass(frozen=True, slots=True)
class LossGaps:
    record: StepRecord
    loss_W: Sequence[float]
    """Gaps of the losses' logarithms."""

    def norm(self, worker: int, group: int | None = None) -> float | None:
        """The gap of its logarithm, of the whole gradient or of a layer group."""
        norm_W = self.record.norm_W if group is None else self.record.norm_GW[group]
        log_norm_W = logs(norm_W) if len(norm_W) == len(self.loss_W) else None
        return None if log_norm_W is None else gaps_to_others(log_norm_W)[worker]


@dataclass(frozen=True, slots=True)
class Scale:
    factor: float
    since: int


class ScaledLosses:
    def __init__(self) -> None:
        self.found: dict[int, Scale] = {}
        """By worker."""

        self.undecided: set[int] = set()
        """Workers of whom a few more readings will tell."""

        self._readings: deque[LossGaps] = deque(maxlen=RECENT)
        self._count = 0

    def follow(self, record: StepRecord, log_loss_W: list[float] | None) -> None:
        """A heard step with new batches that can be compared with those before."""
        workers = len(record.norm_W)
        if log_loss_W is None or len(log_loss_W) != workers or workers < 3:
            return
        self._readings.append(LossGaps(record, gaps_to_others(log_loss_W)))
        self._count += 1
        if self._count % EVERY == 0:
            self._judge(workers)

    def _judge(self, workers: int) -> None:
        newest = list(self._readings)[-EVERY:]
        usual_W = [median([reading.loss_W[worker] for reading in newest]) for worker in range(workers)]
        apart = [worker for worker, usual in enumerate(usual_W) if abs(usual) >= LEAST]
        again = {worker: self._again(worker, scale) for worker, scale in self.found.items()}
        self.found = {worker: scale for worker, scale in again.items() if scale is not None}
        self.undecided = set()
        if 2 * len(apart) >= workers:
            return
        for worker in set(apart) - set(self.found):
            readings = self._since(worker, usual_W[worker])
            verdict = _scale(readings, worker)
            if verdict is not None and len(readings) >= ENOUGH:
                self.found[worker] = verdict
            elif verdict is not None or len(readings) < ENOUGH:
                self.undecided |= {worker} if len(readings) < DECIDED else set()

    def _again(self, worker: int, scale: Scale) -> Scale | None:
        """Losses near zero are too noisy to find it by, but not to see that it is over."""
        readings = [reading for reading in self._readings if reading.record.step >= scale.since]
        norms = [norm for reading in readings if (norm := reading.norm(worker)) is not None]
        if not norms or median(norms[-ENOUGH:]) / math.log(scale.factor) < STILL:
            return None
        return Scale(math.exp(median(norms)), scale.since)

    def _since(self, worker: int, usual: float) -> list[LossGaps]:
        """The newest readings, up to the last two in a row in which the worker was not apart."""
        found: list[LossGaps] = []
        alike = 0
        for reading in reversed(self._readings):
            alike = alike + 1 if reading.loss_W[worker] * usual < usual**2 / 4 else 0
            if alike > 1:
                return found[-2::-1]
            found.append(reading)
        return found[::-1]


def _scale(readings: Sequence[LossGaps], worker: int) -> Scale | None:
    """One factor for the loss and for the gradient of every layer, the same from the first of these readings on."""
    loss_T = [reading.loss_W[worker] for reading in readings]
    norm_T = [reading.norm(worker) for reading in readings]
    if len(readings) < EVERY or not _agree(loss_T, norm_T, CLOSE, SURE):
        return None
    half, factor = len(readings) // 2, median([norm for norm in norm_T if norm is not None])
    error = 2.5 * 1.25 * scatter(loss_T) / math.sqrt(half)
    steady = abs(median(loss_T[:half]) - median(loss_T[half:])) <= max(CLOSE, error)
    if not steady or abs(factor) < LEAST or not _is_even(readings, worker):
        return None
    return Scale(math.exp(factor), readings[0].record.step)


def _is_even(readings: Sequence[LossGaps], worker: int) -> bool:
    """Every layer group's gradient has the same factor."""
    known = [reading for reading in readings if reading.record.norm_GW]
    groups = min((len(reading.record.norm_GW) for reading in known), default=0)
    whole_T = [reading.norm(worker) for reading in known]
    if len(known) < EVERY or groups < FEW_GROUPS:
        return False
    return all(
        _agree([reading.norm(worker, group) for reading in known], whole_T, EVEN, math.inf) for group in range(groups)
    )


def _agree(one_T: Sequence[float | None], other_T: Sequence[float | None], close: float, sure: float) -> bool:
    """Compared reading by reading: a batch that is harder has a larger loss and a longer gradient."""
    pairs = zip(one_T, other_T, strict=True)
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    if len(differences) < EVERY:
        return False
    error = 1.25 * scatter(differences) / math.sqrt(len(differences))
    return error <= sure and abs(median(differences)) <= max(close, 2.5 * error)
