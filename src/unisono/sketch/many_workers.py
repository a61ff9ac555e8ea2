"""Agreement of very many workers: each against the sum of all, from two passes over their sketches and no pairs.

Sketches are read as the whole numbers they travelled as, a block of workers at a time, so that what is made of them
stays in the processor's cache. Suffixes give shapes: W = workers, B = workers of a block, K = sketch length. A worker
whose gradient is zero or not finite is silent: its own values are nan, and it does not spoil those of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from unisono.sketch.gram import BLOCK

LEAST_REST = 1e-5
"""Of the squared length of the sum: where the others make up less, rounding hides where they point."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Of vectors and of the sum of all of them, in float64."""

    square_W: Tensor
    """Their squared lengths."""

    with_rest_W: Tensor
    """The inner product of each with the sum of the others."""

    whole: Tensor
    """The squared length of the sum of all."""


@dataclass(slots=True)
class SummedDirections:
    """What the workers have said since a window began: the sum of each one's unit directions, and the sum of all."""

    each_WK: Tensor
    all_K: Tensor

    @classmethod
    def none(cls, workers: int, length: int) -> SummedDirections:
        return cls(torch.zeros(workers, length), torch.zeros(length))


@dataclass(frozen=True, slots=True)
class Found:
    gradients: Sums
    """As sketched; each sketch is given the exact norm of its gradient."""

    cosines: Tensor
    """The sum of the cosines of all pairs, as sketched."""

    window: Sums | None


class ManyWorkers:
    """The sketches of many workers beside the exact squared norms of their gradients.

    :param sketch_WK: Of any length each; only their directions count.
    """

    def __init__(self, sketch_WK: Tensor, square_W: Tensor, sent_W: Tensor) -> None:
        self._sketch_WK = sketch_WK
        self.heard_W = sent_W & square_W.isfinite() & (square_W > 0)
        self._square_W = torch.where(self.heard_W, square_W, torch.nan)
        self._all_heard = bool(self.heard_W.all())

    def look(self, window: SummedDirections | None) -> Found:
        """:param window: This step is added to it; `None` where it has no place in one."""
        norm_W = self._square_W.sqrt().nan_to_num(0)
        # Relative to the largest, squares in float32 neither vanish nor overflow.
        largest = norm_W.amax().clamp(min=torch.finfo(norm_W.dtype).tiny)
        sum_2K, unit_W = self._first_look((norm_W / largest).float())
        if window is not None:
            window.all_K += sum_2K[1]
        with_all_W, window_2W = self._second_look(sum_2K[0], unit_W, window)
        with_all_W = torch.where(unit_W > 0, with_all_W.double() * norm_W * largest, torch.nan)
        gradients = Sums(self._square_W, with_all_W - self._square_W, _square(sum_2K[0]) * largest**2)
        cosines = _square(sum_2K[1]) - (unit_W > 0).sum()
        square_W, product_W = window_2W.double()
        return Found(gradients, cosines, None if window is None else _sums(square_W, product_W, _square(window.all_K)))

    def _first_look(self, norm_W: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of all gradients and that of all unit gradients; what makes each sketch a unit vector."""
        sum_2K, unit_W = torch.zeros(2, self._sketch_WK.shape[1]), torch.zeros(len(norm_W))
        for here, wide_BK in self._blocks():
            square_B = _squares(wide_BK)
            unit_W[here] = torch.where(square_B > 0, square_B.rsqrt(), 0)
            sum_2K.addmm_(torch.stack([norm_W[here] * unit_W[here], unit_W[here]]), wide_BK)
        return sum_2K, unit_W

    def _second_look(self, all_K: Tensor, unit_W: Tensor, window: SummedDirections | None) -> tuple[Tensor, Tensor]:
        """Products of the unit gradients with the sum; squares and products of the directions in the window."""
        with_all_W, window_2W = torch.zeros(len(unit_W)), torch.zeros(2, len(unit_W))
        for here, wide_BK in self._blocks():
            with_all_W[here] = (wide_BK @ all_K) * unit_W[here]
            if window is not None:
                each_BK = window.each_WK[here].addcmul_(wide_BK, unit_W[here, None])
                window_2W[0, here], window_2W[1, here] = _squares(each_BK), each_BK @ window.all_K
        return with_all_W, window_2W

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        workers, length = self._sketch_WK.shape
        rows = max(1, BLOCK // length)
        scratch_BK = torch.empty(rows, length)
        for start in range(0, workers, rows):
            here = slice(start, min(start + rows, workers))
            wide_BK = scratch_BK[: here.stop - start].copy_(self._sketch_WK[here])
            if not self._all_heard:
                wide_BK[~self.heard_W[here]] = 0
            yield here, wide_BK


def shift_to_mean(found: Found, squared_norm_of_mean: float) -> Found:
    """
    As if all pairs were moved in proportion to |g_i|^2 |g_j|^2, so that their sum is exact: see `gram.shift_to_mean`.

    Only where no worker is silent for want of finite numbers.
    """
    square_W = found.gradients.square_W.nan_to_num(0)
    whole = found.gradients.whole.new_tensor(len(square_W) ** 2 * squared_norm_of_mean)
    weight_W = square_W * (square_W.sum() - square_W)
    share = (whole - found.gradients.whole) / weight_W.sum()
    lengths = square_W.sqrt().sum() ** 2 - square_W.sum()
    moved = Sums(found.gradients.square_W, found.gradients.with_rest_W + share * weight_W, whole)
    return Found(moved, found.cosines + share * lengths, found.window)


def leave_one_out(sums: Sums) -> Tensor:
    """The cosine of each worker against the sum of the others; nan without others."""
    square_W = torch.where(sums.square_W > 0, sums.square_W, torch.nan)
    rest_W = sums.whole - 2 * sums.with_rest_W - square_W
    rest_W = torch.where(rest_W > LEAST_REST * sums.whole, rest_W, torch.nan)
    return (sums.with_rest_W / (square_W.sqrt() * rest_W.sqrt())).clamp(-1, 1)


def mean_pairwise(found: Found) -> Tensor:
    """The mean cosine over all pairs of workers that are not silent; nan without a pair."""
    heard = found.gradients.with_rest_W.isfinite().sum()
    pairs = torch.where(heard > 1, heard * (heard - 1), torch.nan)
    return (found.cosines / pairs).clamp(-1, 1)


def leave_one_out_of(sketch_WK: Tensor) -> Tensor:
    """Of sketches alone."""
    square_W = _squares(sketch_WK)
    known_WK = torch.where(square_W.isfinite()[:, None], sketch_WK, 0)
    all_K = known_WK.sum(0)
    return leave_one_out(_sums(square_W.double(), (known_WK @ all_K).double(), _square(all_K)))


def _sums(square_W: Tensor, with_all_W: Tensor, whole: Tensor) -> Sums:
    return Sums(square_W, with_all_W - square_W, whole)


def _squares(vector_BK: Tensor) -> Tensor:
    # Not a norm: torch's is too small over long vectors, by 6e-5 of the square for 65,536 whole numbers.
    square_B: Tensor = torch.linalg.vecdot(vector_BK, vector_BK)
    return square_B


def _square(vector_K: Tensor) -> Tensor:
    return vector_K.double().square().sum()
