"""Two ways from micro-gradients to their weighted sum: one after the other, or all of them kept until the end.

W = micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from unisono.act.microbatching.flat_sum import FlatSum, fits
from unisono.act.microbatching.gradients import Gradients, Prepared, RunningSum, gram
from unisono.act.weightings.agreement import AgreementFilter, distance, rounding
from unisono.act.weightings.consensus import distances
from unisono.act.weightings.weighting import checked_weights, finite_workers, shared

DOUBLINGS = 16
"""The sum of `halving` is kept times a power of two, up to this one: far from overflow, and without rounding."""


@dataclass(frozen=True)
class MicrobatchOutcome:
    weight_W: list[float]
    distance_W: list[float]
    finite_W: list[bool]
    total: RunningSum | FlatSum


class Route(Protocol):
    def take_up(self, gradients: Gradients) -> None:
        """One micro-batch more; the gradients are the route's from now on."""

    def outcome(self) -> MicrobatchOutcome:
        """Of all micro-batches taken up."""


def route_for(weighting: Callable[[Tensor], Tensor], parameters: Sequence[nn.Parameter], gradients: Gradients) -> Route:
    """
    :param gradients: Of the first micro-batch.
    """
    total = FlatSum(parameters) if fits(gradients) else RunningSum()
    if isinstance(weighting, AgreementFilter) and weighting.order == "sequential":
        return OneAfterTheOther(weighting, total)
    return AllTogether(weighting, total)


@dataclass
class OneAfterTheOther:
    """Sequential agreement as micro-batches come in: the sum of those taken up is all that is kept."""

    rule: AgreementFilter
    _sum: RunningSum | FlatSum
    _kept: list[int] = field(default_factory=list)
    _distance_W: list[float] = field(default_factory=list)
    _finite_W: list[bool] = field(default_factory=list)
    _doublings: int = 0

    def take_up(self, gradients: Gradients) -> None:
        prepared = self._sum.prepared(gradients)
        product_22 = self._sum.products(prepared)
        finite = product_22[0][0] < math.inf
        apart = math.nan
        if finite and self._kept:
            apart = distance(product_22[0][1], product_22[1][1], product_22[0][0])
        # The sum was rounded as often as it was added to, so that the limit is as wide as float32 is exact.
        if finite and not apart > cast("float", self.rule.max_distance) + rounding(torch.float32):
            self._fuse(prepared)
            self._kept.append(len(self._finite_W))
        self._finite_W.append(finite)
        self._distance_W.append(apart)

    def _fuse(self, prepared: Prepared) -> None:
        if self._doublings == DOUBLINGS:
            self._sum.scale(2.0**-DOUBLINGS)
            self._doublings = 0
        self._sum.add(prepared, 2.0**self._doublings)
        if self._kept and self.rule.fusion == "halving":
            self._doublings += 1

    def outcome(self) -> MicrobatchOutcome:
        workers, kept = len(self._finite_W), self._kept
        weight_W = [0.0] * workers
        if len(kept) > 1 or workers == 1:
            weight_W = _halved(workers, kept) if self.rule.fusion == "halving" else shared(workers, kept)
            self._sum.scale(2.0**-self._doublings if self.rule.fusion == "halving" else 1 / max(1, len(kept)))
        return MicrobatchOutcome(weight_W, self._distance_W, self._finite_W, self._sum)


def _halved(workers: int, kept: list[int]) -> list[float]:
    """The last counts half, the one before it a quarter; the first as much as the second."""
    weight_W = [0.0] * workers
    for place, worker in enumerate(kept):
        weight_W[worker] = 0.5 ** (len(kept) - max(1, place))
    return weight_W


@dataclass
class AllTogether:
    """Any weighting: every micro-batch's gradients are kept until all are there to be compared."""

    weighting: Callable[[Tensor], Tensor]
    _sum: RunningSum | FlatSum
    _row_W: list[Prepared] = field(default_factory=list)

    def take_up(self, gradients: Gradients) -> None:
        self._row_W.append(self._sum.prepared(gradients))

    def outcome(self) -> MicrobatchOutcome:
        # Brought to the host before anybody asks for a number of it: on a GPU the only time that is waited for.
        gram_WW = gram(self._row_W).cpu()
        weight_W = checked_weights(self.weighting(gram_WW), len(gram_WW))
        finite = set(finite_workers(gram_WW))
        distance_W = distances(gram_WW, [worker for worker, weight in enumerate(weight_W) if weight])
        for weight, row in zip(weight_W, self._row_W, strict=True):
            if weight:
                self._sum.add(row, weight)
        return MicrobatchOutcome(weight_W, distance_W, [worker in finite for worker in range(len(weight_W))], self._sum)
