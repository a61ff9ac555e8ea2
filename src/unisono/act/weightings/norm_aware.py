"""Agreement in direction and length: a gradient ten times as long agrees a tenth as much (open question of 2412.18052).

W = workers or micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unisono.act.weightings.weighting import Wrapped, check_square


@dataclass(frozen=True)
class NormAware(Wrapped):
    """
    Shows the other weighting `<a, b> min(|a|, |b|) / max(|a|, |b|)` in place of every inner product.

    That factor is `exp(-|log |a| - log |b||)`, a positive definite kernel of the lengths, so that the result is again a
    Gram matrix: cosines, sums and distances keep their meaning.
    """

    def __call__(self, gram_WW: Tensor) -> Tensor:
        check_square(gram_WW)
        norm_W = gram_WW.diagonal().clamp(min=0).sqrt()
        least_WW, most_WW = torch.minimum(norm_W[:, None], norm_W), torch.maximum(norm_W[:, None], norm_W)
        alike_WW = torch.where(most_WW > 0, least_WW / most_WW, 1)
        return self.weighting((gram_WW * alike_WW).diagonal_scatter(gram_WW.diagonal()))
