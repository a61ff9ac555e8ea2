"""Who agrees with the sum of the others, whatever the order of workers.

W = workers or micro-batches, K = those of them still in question.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unisono.act.weightings.weighting import finite_workers

TIED = 1e-9
"""Workers whose cosines are this close leave together: which of them is first must not decide."""


def agreeing(gram_WW: Tensor, least_cosine: Callable[[int], float]) -> list[int]:
    """
    The workers left when those who disagree most with the sum of the others have gone, one by one, until all agree.

    Gradients are taken at equal length: a long one would otherwise make its own direction that of the sum. Empty where
    no two are left.

    :param least_cosine: From the number of the others to the cosine with their sum that counts as agreement.
    """
    kept = finite_workers(gram_WW)
    unit_WW = at_equal_length(gram_WW)
    while len(kept) > 1:
        cos_K = with_others(unit_WW[kept][:, kept])
        worst = float(cos_K.min())
        if worst >= least_cosine(len(kept) - 1):
            return kept
        kept = [worker for worker, cosine in zip(kept, cos_K.tolist(), strict=True) if cosine > worst + TIED]
    return []


def at_equal_length(gram_WW: Tensor) -> Tensor:
    """Cosines; zero with gradients of zeros, whose own square stays zero."""
    square_W = gram_WW.diagonal()
    length_W = torch.where(square_W > 0, square_W, 1).sqrt()
    return gram_WW / length_W[:, None] / length_W


def with_others(gram_KK: Tensor) -> Tensor:
    """Each one's cosine with the sum of the others; zero where one of the two is."""
    square_K, row_K = gram_KK.diagonal(), gram_KK.sum(1)
    rest_K = (row_K.sum() - 2 * row_K + square_K).clamp(min=0)
    # The rest comes from a difference: below the rounding error of its terms it is zero.
    heard_K = (square_K > 0) & (rest_K > 1e-14 * gram_KK.abs().sum())
    scale_K = torch.where(heard_K, square_K * rest_K, 1).sqrt()
    return torch.where(heard_K, (row_K - square_K) / scale_K, 0).clamp(-1, 1)


def distances(gram_WW: Tensor, kept: list[int]) -> list[float]:
    """Each worker's cosine distance to the sum of the other kept ones, at equal length; nan for who is not finite.

    Where nobody is kept, to the sum of all others.
    """
    unit_WW = at_equal_length(gram_WW)
    heard = set(finite_workers(gram_WW))
    reference_W = torch.zeros(len(gram_WW), dtype=gram_WW.dtype)
    reference_W[[worker for worker in kept or heard if worker in heard]] = 1
    finite_WW = torch.where(unit_WW.isfinite(), unit_WW, 0)
    square_W, row_W = finite_WW.diagonal(), finite_WW @ reference_W
    own_W = reference_W * square_W
    rest_W = (reference_W @ row_W - 2 * reference_W * row_W + own_W).clamp(min=0)
    scale_W = (square_W * rest_W).sqrt()
    cos_W = torch.where(scale_W > 1e-9, (row_W - own_W) / scale_W, 0).clamp(-1, 1).tolist()
    return [1 - cosine if worker in heard else float("nan") for worker, cosine in enumerate(cos_W)]
