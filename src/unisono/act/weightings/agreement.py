"""Gradient Agreement Filtering ("Beyond Gradient Averaging in Parallel Optimization", arXiv 2412.18052).

W = workers or micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unisono.act.weightings.consensus import agreeing
from unisono.act.weightings.weighting import Weighting, finite_workers, like, on_host, shared

ORDERS, FUSIONS = ("any", "sequential"), ("mean", "halving")
RECOMMENDED = 0.97


@dataclass(frozen=True)
class AgreementFilter(Weighting):
    """
    Averages the gradients that agree, leaves out the others, and skips the step where nobody does.

    :param max_distance: Cosine distance, 0 to 2, up to which a gradient agrees; or a function from the step to it.
    :param order: `any`: who disagrees most with the sum of the others leaves, until all who are left agree, whatever
        their order. `sequential`, as published: a running mean starts at the first worker and takes up one after the
        other, if it agrees.
    :param fusion: Of `sequential`: `mean` as published; `halving` as the authors' package does it, where each one taken
        up counts as much as all before it together.
    """

    max_distance: float | Callable[[int], float] = RECOMMENDED
    order: str = "any"
    fusion: str = "mean"

    def __post_init__(self) -> None:
        if self.order not in ORDERS or self.fusion not in FUSIONS:
            raise ValueError(
                "`order` should be `any` or `sequential`, `fusion` should be `mean` or `halving`. "
                f"Found `order={self.order!r}, fusion={self.fusion!r}`."
            )
        if self.order == "any" and self.fusion == "halving":
            raise ValueError('`fusion="halving"` depends on the order of workers. Write: order="sequential"')
        if not callable(self.max_distance) and not (
            isinstance(self.max_distance, (int, float)) and 0 <= self.max_distance <= 2
        ):
            raise ValueError(
                f"`max_distance` should be a cosine distance from 0 to 2. Found `{self.max_distance}`. "
                "0.97 is what the paper recommends; 2 keeps everybody."
            )

    def at(self, step: int) -> AgreementFilter:
        return replace(self, max_distance=self.max_distance(step)) if callable(self.max_distance) else self

    def __call__(self, gram_WW: Tensor) -> Tensor:
        if callable(self.max_distance):
            return self.at(0)(gram_WW)
        workers, host_WW = len(gram_WW), on_host(gram_WW)
        if workers == 1:
            return like(gram_WW, [1.0] if finite_workers(host_WW) else [0.0])
        max_distance = self.max_distance + rounding(gram_WW.dtype)
        if self.order == "any":
            return like(gram_WW, shared(workers, agreeing(host_WW, lambda others: 1 - max_distance)))
        return like(gram_WW, self._one_after_the_other(host_WW, max_distance))

    def _one_after_the_other(self, gram_WW: Tensor, max_distance: float) -> list[float]:
        weight_W, kept = [0.0] * len(gram_WW), list[int]()
        with_all_W = [0.0] * len(gram_WW)
        """Inner products of the running mean with everybody."""

        square = 0.0
        for worker in finite_workers(gram_WW):
            row_W = gram_WW[worker].tolist()
            if kept and distance(with_all_W[worker], square, row_W[worker]) > max_distance:
                continue
            old, new = self.shares(len(kept))
            square = old**2 * square + 2 * old * new * with_all_W[worker] + new**2 * row_W[worker]
            with_all_W = [old * before + new * added for before, added in zip(with_all_W, row_W, strict=True)]
            weight_W = [old * weight for weight in weight_W]
            weight_W[worker] = new
            kept.append(worker)
        if len(kept) < 2:
            return [0.0] * len(gram_WW)
        # Without the rounding of all the shares: equal weights are the mean to the last bit.
        return shared(len(gram_WW), kept) if self.fusion == "mean" else weight_W

    def shares(self, kept: int) -> tuple[float, float]:
        """How much the running mean of `kept` gradients and the next one count together."""
        if kept == 0:
            return 0.0, 1.0
        return (0.5, 0.5) if self.fusion == "halving" else (kept / (kept + 1), 1 / (kept + 1))


def distance(product: float, square: float, other_square: float) -> float:
    """Cosine distance from an inner product and two squared norms; 1 from a gradient of zeros."""
    scale = math.sqrt(max(0.0, square)) * math.sqrt(max(0.0, other_square))
    return 1 - min(1.0, max(-1.0, product / scale)) if scale > 0 else 1.0


def rounding(dtype: torch.dtype) -> float:
    """How far off a cosine may be for rounding of the matrix: who is exactly at the limit agrees."""
    return float(min(64 * torch.finfo(dtype).eps, 1e-5))
