"""Everything about agreement as functions of the workers' Gram matrix, in float64 and without synchronisation.

Suffixes give shapes: W = workers, K = sketch length. A worker whose gradient is zero or not finite is silent: its own
values are nan, and it does not spoil those of others. All functions are free of branches on tensor values.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 1 << 18
"""Numbers that are widened together."""

_EPSILON = torch.finfo(torch.float64).eps


def gram(sketch_WK: Tensor) -> Tensor:
    """Inner products of all pairs of sketches."""
    workers, gram_WW = len(sketch_WK), sketch_WK.new_zeros(len(sketch_WK), len(sketch_WK), dtype=torch.float64)
    # Part by part, because a copy of all in float64 would not stay in the processor's cache.
    for part_WK in sketch_WK.split(max(1, BLOCK // workers), 1):
        wide_WK = part_WK.to(torch.float64)
        gram_WW.addmm_(wide_WK, wide_WK.T)
    return gram_WW


def cosines(gram_WW: Tensor) -> Tensor:
    """Pairwise cosines of the workers' gradients; rows of silent workers are nan."""
    norm_W = _norms(gram_WW.diagonal())
    return (gram_WW / norm_W[:, None] / norm_W).clamp(-1, 1)


def likeliest(gram_sketch_WW: Tensor, squared_norm_W: Tensor, iterations: int = 6) -> Tensor:
    """
    The most likely Gram matrix given the one of sketches and the exact norms (Li, Hastie and Church, "Improving random
    projections using marginal information", 2006): per pair a root of a cubic, by Newton from the sketches' own cosine.
    """
    norm_W = squared_norm_W.to(torch.float64).sqrt()
    unit_W = torch.where(norm_W > 0, norm_W, 1)
    product_WW = gram_sketch_WW / unit_W[:, None] / unit_W
    share_W = product_WW.diagonal()
    excess_WW = share_W[:, None] + share_W - 1
    cosine_WW = (product_WW / (share_W[:, None] * share_W).clamp(min=_EPSILON**2).sqrt()).clamp(-1, 1)
    for _ in range(iterations):
        value_WW = ((cosine_WW - product_WW) * cosine_WW + excess_WW) * cosine_WW - product_WW
        slope_WW = (3 * cosine_WW - 2 * product_WW) * cosine_WW + excess_WW
        # A flat cubic is a sketch of a few unlucky buckets; a small step keeps its own cosine instead of leaping away.
        cosine_WW = (cosine_WW - value_WW / slope_WW.clamp(min=0.1)).clamp(-1, 1)
    likely_WW = cosine_WW * norm_W[:, None] * norm_W
    return likely_WW.diagonal_scatter(squared_norm_W.to(torch.float64))


def shift_to_mean(gram_WW: Tensor, squared_norm_of_mean: Tensor | float, rounds: int = 4) -> Tensor:
    """
    Move the pairs, in proportion to |g_i|^2 |g_j|^2, so that their sum is the exact W^2 |mean|^2 - sum |g_i|^2.

    A pair stays within |g_i| |g_j|; what does not fit is offered to the other pairs in the next round. Without a finite
    norm of the mean the matrix is returned as it is.
    """
    square_W = gram_WW.diagonal()
    limit_WW = (square_W[:, None] * square_W).sqrt()
    target = len(square_W) ** 2 * squared_norm_of_mean - square_W.sum()
    pair_WW = ~torch.eye(len(square_W), dtype=torch.bool, device=gram_WW.device)
    shifted_WW = gram_WW
    for _ in range(rounds):
        residual = target - (shifted_WW * pair_WW).sum()
        free_WW = pair_WW & (shifted_WW * residual.sign() < limit_WW)
        weight_WW = square_W[:, None] * square_W * free_WW
        share_WW = weight_WW / weight_WW.sum()
        moved_WW = (shifted_WW + residual * share_WW).clamp(-limit_WW, limit_WW)
        shifted_WW = torch.where(share_WW.isfinite() & pair_WW, moved_WW, shifted_WW)
    return torch.where(target.isfinite(), shifted_WW, gram_WW)


def leave_one_out(gram_WW: Tensor) -> Tensor:
    """The cosine of each worker against the sum of the others; nan without others."""
    norm_W = _norms(gram_WW.diagonal())
    heard_WW = torch.where(norm_W.isnan()[:, None] | norm_W.isnan(), 0, gram_WW)
    square_W, row_W = heard_WW.diagonal(), heard_WW.sum(1)
    rest_W = row_W.sum() - 2 * row_W + square_W
    # The rest comes from a difference: below the rounding error of its terms it is zero.
    rest_W = torch.where(rest_W > 4 * _EPSILON * heard_WW.abs().sum(), rest_W, 0)
    return ((row_W - square_W) / norm_W / _norms(rest_W)).clamp(-1, 1)


def mean_pairwise(gram_WW: Tensor) -> Tensor:
    """The mean cosine over all pairs of workers that are not silent; nan without a pair."""
    apart_WW = cosines(gram_WW).fill_diagonal_(torch.nan)
    return apart_WW.nanmean()


def weighted_mean_cosine(squared_norm_W: Tensor, squared_norm_of_mean: Tensor | float) -> Tensor:
    """The mean cosine over all pairs, weighted by |g_i| |g_j|: exact, without any sketch."""
    square_W = squared_norm_W.to(torch.float64)
    total, squares = square_W.sqrt().sum() ** 2, square_W.sum()
    weight = total - squares
    weight = torch.where(weight > 4 * _EPSILON * total, weight, torch.nan)
    return ((len(square_W) ** 2 * squared_norm_of_mean - squares) / weight).clamp(-1, 1)


def noise(squared_norm_W: Tensor, squared_norm_of_mean: Tensor | float) -> tuple[Tensor, Tensor]:
    """
    Unbiased |true gradient|^2 and trace of its covariance at one worker's batch (McCandlish et al., arXiv 1812.06162).
    Their ratio, trace over signal, is the noise scale in batches of one worker.
    """
    workers = len(squared_norm_W)
    square = squared_norm_W.to(torch.float64).mean()
    others = workers - 1 if workers > 1 else torch.nan
    return (workers * squared_norm_of_mean - square) / others, (square - squared_norm_of_mean) * workers / others


def _norms(square_W: Tensor) -> Tensor:
    return torch.where((square_W > 0) & square_W.isfinite(), square_W, torch.nan).sqrt()
