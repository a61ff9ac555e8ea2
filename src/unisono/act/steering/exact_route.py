"""Steering by the exact Gram matrix: every worker holds one slice of all gradients, compares and combines it.

The bytes are those of an all-reduce. W = workers, N = numbers of a bucket, S = numbers of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unisono.exchange.collectives import PIECE, Slices, SteeringCollectives


class ExactRoute:
    def __init__(self, collectives: SteeringCollectives) -> None:
        self._collectives = collectives
        self._under_way: list[tuple[Tensor, Slices]] = []

    def take(self, buffer_N: Tensor, parameters: Sequence[Tensor]) -> None:
        self._under_way.append((buffer_N, self._collectives.swap(buffer_N)))

    def gram(self) -> Tensor | None:
        slices = [slices.arrived() for _, slices in self._under_way]
        found = self._collectives.gram(slices, 0.0)
        return None if found is None else found[0]

    def combine(self, weight_W: Sequence[float]) -> None:
        """The weighted sum, in every bucket taken so far."""
        for buffer_N, slices in self._under_way:
            self._collectives.put_together(buffer_N, _weighted_sum(slices.slice_WS, weight_W))

    def finish(self) -> None:
        self._under_way.clear()

    lacks_moments = False

    def learn_from(self, optimizer: object) -> None:
        """Gradients are compared as they are."""

    def pass_ended(self) -> None:
        """Nothing is kept from pass to pass."""


def _weighted_sum(slice_WS: Tensor, weight_W: Sequence[float]) -> Tensor:
    """Rounded once. Rows without weight are left out: what is not finite stays so when multiplied by zero."""
    kept = [worker for worker, weight in enumerate(weight_W) if weight]
    weight_K = torch.tensor([weight_W[worker] for worker in kept], dtype=torch.float64, device=slice_WS.device)
    pieces = slice_WS.split(PIECE, dim=1)
    return torch.cat([(weight_K @ piece_WP[kept].double()).to(slice_WS.dtype) for piece_WP in pieces])
