"""Whatever TorchJD (Quinton and Rey, arXiv 2406.16232) computes from a Gram matrix: Krum, UPGrad, MGDA and others.

W = workers or micro-batches, K = those whose gradient is finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from unisono.act.weightings.weighting import Weighting, finite_workers, like, on_host


@dataclass(frozen=True)
class FromTorchJD(Weighting):
    """
    An aggregator of the package `torchjd`, as in `FromTorchJD(torchjd.aggregation.Krum(n_byzantine=1))`.

    Workers whose gradient is not finite are left out before it is asked.
    """

    aggregator: Any

    def __post_init__(self) -> None:
        if not callable(getattr(self.aggregator, "gramian_weighting", None)):
            raise TypeError(
                "`aggregator` should be one of torchjd.aggregation with a `gramian_weighting`, as Krum or UPGrad. "
                f"Found {type(self.aggregator).__name__}."
            )

    def __call__(self, gram_WW: Tensor) -> Tensor:
        host_WW = on_host(gram_WW)
        heard = finite_workers(host_WW)
        weight_W = [0.0] * len(host_WW)
        if heard:
            weight_K = self.aggregator.gramian_weighting(host_WW[heard][:, heard]).tolist()
            for worker, weight in zip(heard, weight_K, strict=True):
                weight_W[worker] = weight
        return like(gram_WW, weight_W)
