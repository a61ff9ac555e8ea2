"""What the weightings have in common. W = workers or micro-batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


class Weighting(ABC):
    """The last three members tell steering how to take the Gram matrix; whoever has one may ignore them."""

    @abstractmethod
    def __call__(self, gram_WW: Tensor) -> Tensor: ...

    def at(self, step: int) -> Weighting:
        """Itself as it is at this step, where a schedule changes it."""
        return self

    @property
    def window(self) -> int:
        """Over how many steps directions are summed before they are compared."""
        return 1

    @property
    def damping(self) -> float | None:
        """Not None: gradients are compared in the metric of Adam's second moments."""
        return None


@dataclass(frozen=True)
class Wrapped(Weighting):
    """Another weighting, ours or a function, given something else to look at."""

    weighting: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        if not callable(self.weighting) or isinstance(self.weighting, type):
            name = type(self).__name__
            raise TypeError(
                f"{name} should be put around a weighting. Found {self.weighting!r}. Write: {name}(AgreementFilter())"
            )

    def __call__(self, gram_WW: Tensor) -> Tensor:
        return self.weighting(gram_WW)

    def at(self, step: int) -> Weighting:
        return replace(self, weighting=self.weighting.at(step)) if isinstance(self.weighting, Weighting) else self

    @property
    def window(self) -> int:
        return window_of(self.weighting)

    @property
    def damping(self) -> float | None:
        return damping_of(self.weighting)


def window_of(weighting: Any) -> int:
    """Also of a function of the user's, which knows of no window."""
    return weighting.window if isinstance(weighting, Weighting) else 1


def damping_of(weighting: Any) -> float | None:
    return weighting.damping if isinstance(weighting, Weighting) else None


def on_host(gram_WW: Tensor) -> Tensor:
    """The matrix as decisions are made on it: in float64, in host memory."""
    check_square(gram_WW)
    return gram_WW.detach().to("cpu", torch.float64)


def check_square(gram_WW: Tensor) -> None:
    if gram_WW.ndim != 2 or gram_WW.shape[0] != gram_WW.shape[1]:
        raise ValueError(f"A weighting should be called with a square matrix. Found shape {tuple(gram_WW.shape)}.")


def like(gram_WW: Tensor, weight_W: Sequence[float]) -> Tensor:
    """Weights where the matrix is, and as exact as it, but never below float32."""
    exact = gram_WW.dtype if gram_WW.dtype in (torch.float32, torch.float64) else torch.float32
    return torch.tensor(weight_W, dtype=exact, device=gram_WW.device)


def checked_weights(weights: Any, workers: int) -> list[float]:
    """What a weighting returned, which may be the user's own."""
    weight_W: list[float] = torch.as_tensor(weights, dtype=torch.float64).flatten().tolist()
    if len(weight_W) != workers or not all(map(math.isfinite, weight_W)):
        raise ValueError(
            f"A weighting should return one finite weight for each of {workers} gradients. Found {weight_W}. "
            "Return zeros to skip a step."
        )
    return weight_W


def finite_workers(gram_WW: Tensor) -> list[int]:
    """Those whose own gradient is finite: only a row of one that is not spoils entries of others."""
    return [worker for worker, square in enumerate(gram_WW.diagonal().tolist()) if square < float("inf")]


def shared(workers: int, kept: Sequence[int]) -> list[float]:
    """Equal weights for those who are kept."""
    weight_W = [0.0] * workers
    for worker in kept:
        weight_W[worker] = 1 / len(kept)
    return weight_W
