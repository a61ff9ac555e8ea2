"""Recorded Gram matrices, replayed: what a weighting would have kept and left out. Nothing is trained.

W = workers, R = readings.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unisono.common.errors import UserError
from unisono.common.limits import MATRIX_UP_TO
from unisono.lab.whatif.question import Question
from unisono.records import Floats, StepRecord

MOST = 2_000
"""Readings that are replayed: with more, every second one is left out, so that the whole run is in view."""


@dataclass(frozen=True)
class GramReading:
    step: int
    gram_WW: Tensor


class GramReadings:
    """The readings of a run that hold a matrix. An attempt takes the place of what it does again."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._begin(workers=0)

    def _begin(self, workers: int) -> None:
        self.workers = workers
        self.heard = 0
        self.kept: list[GramReading] = []
        self._steps = array("q")
        self._stride, self._passed = 1, 0

    @property
    def steps(self) -> int:
        return len(self._steps)

    def see(self, record: StepRecord) -> None:
        workers = len(record.norm_W or record.finite_W)
        if workers and workers != self.workers:
            self._begin(workers)
        elif record.attempt != self._attempt:
            self._forget_from(record.step)
        self._attempt = record.attempt
        self._steps.append(record.step)
        self.heard += bool(record.norm_W)
        if workers > 1 and record.norm_W and record.cos_WW:
            self._keep(record)

    def check(self) -> None:
        """Raises UserError where there is nothing to replay."""
        if self.kept:
            return
        rule = "`lab whatif` replays the cosines of all pairs of workers."
        again = "unisono run --every 1 -- CMD..."
        if self.workers == 1:
            raise UserError(f"{rule} Found one worker, alone. Record a job of two or more with: {again}")
        if not self.heard:
            raise UserError(f"{rule} Found no reading of gradients in {self.steps:,} steps. Record some with: {again}")
        if self.workers > MATRIX_UP_TO:
            raise UserError(
                f"{rule} Found {self.workers} workers and no cosines of pairs: above {MATRIX_UP_TO} workers they are "
                f"kept only while a suspicion is looked into. Record a job of up to {MATRIX_UP_TO} with: {again}"
            )
        raise UserError(f"{rule} Found {self.heard:,} readings without them. Record the job again with: {again}")

    def _keep(self, record: StepRecord) -> None:
        if self._passed % self._stride == 0:
            self.kept.append(GramReading(record.step, gram_of(record.cos_WW, record.norm_W)))
        self._passed += 1
        if len(self.kept) > MOST:
            self.kept, self._stride = self.kept[::2], 2 * self._stride

    def _forget_from(self, step: int) -> None:
        del self._steps[bisect_left(self._steps, step) :]
        self.kept = [reading for reading in self.kept if reading.step < step]


@dataclass(frozen=True)
class GridRow:
    """One value of the option, over all readings."""

    value: float
    weight_RW: Tensor
    step_R: Tensor
    cosine: float | None
    """Mean cosine of the update with the plain mean of all gradients."""

    @property
    def skipped(self) -> int:
        return int((~self._taken).sum())

    @property
    def effective_workers(self) -> float | None:
        """How many equal workers the updates are worth, on average."""
        return _mean((1 / self.weight_RW[self._taken].square().sum(1)).tolist())

    def keep_rates(self, first_step: float = -math.inf, last_step: float = math.inf) -> list[float]:
        """Share of the steps between these, less the skipped ones, at which each worker is kept; empty without any."""
        seen_R = self._taken & (self.step_R >= first_step) & (self.step_R <= last_step)
        kept_W: list[float] = (self.weight_RW[seen_R] != 0).double().mean(0).tolist() if bool(seen_R.any()) else []
        return kept_W

    @property
    def _taken(self) -> Tensor:
        return (self.weight_RW != 0).any(1)


def replay(readings: Sequence[GramReading], question: Question) -> list[GridRow]:
    return [_row(readings, value, question.at(value).weighting()) for value in question.values]


def _row(readings: Sequence[GramReading], value: float, weighting: Any) -> GridRow:
    weights = [weighting.at(reading.step)(reading.gram_WW) for reading in readings]
    cosines = [cosine_with_mean(one.gram_WW, weight_W) for one, weight_W in zip(readings, weights, strict=True)]
    step_R = torch.tensor([reading.step for reading in readings])
    return GridRow(value, torch.stack(weights), step_R, _mean([one for one in cosines if one is not None]))


def gram_of(cos_WW: Sequence[Floats], norm_W: Floats) -> Tensor:
    """A gradient of zeros has no cosines, but inner products of zero; one that is not finite has neither."""
    known_W = _tensor(norm_W)
    gram_WW = torch.stack([_tensor(row_W) for row_W in cos_WW]) * known_W[:, None] * known_W
    finite_W, zero_W = known_W.isfinite(), known_W == 0
    nothing_WW = (zero_W[:, None] | zero_W) & finite_W[:, None] & finite_W
    return torch.where(nothing_WW, 0.0, gram_WW).diagonal_scatter(known_W.square())


def cosine_with_mean(gram_WW: Tensor, weight_W: Tensor) -> float | None:
    """None where there is no update, or where the plain mean is zero or not finite."""
    product_W = gram_WW @ weight_W
    update, mean = float(weight_W @ product_W), float(gram_WW.mean())
    least = 1e-12 * float(gram_WW.diagonal().mean())
    if not (update > least and mean > least):  # also where one is nan
        return None
    return max(-1.0, min(1.0, float(product_W.mean()) / math.sqrt(update * mean)))


def _tensor(values: Floats) -> Tensor:
    return torch.tensor([math.nan if value is None else value for value in values], dtype=torch.float64)


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None
