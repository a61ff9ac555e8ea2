"""Plain averaging: what all-reduce does without steering."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unisono.act.weightings.weighting import Weighting, like, shared


@dataclass(frozen=True)
class Mean(Weighting):
    """Everybody counts the same, also who is not finite."""

    def __call__(self, gram_WW: Tensor) -> Tensor:
        return like(gram_WW, shared(len(gram_WW), range(len(gram_WW))))
