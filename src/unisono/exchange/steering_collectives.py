"""Where the workers meet to steer: collectives on training's own group, which wait and fail as all-reduce does.

Only the first worker decides, and all take its word. Each deciding alone from the same numbers would be quicker, but
processors that round differently would then disagree at the limit, and some would take a step that others skip.

W = workers, N = numbers of a vector, S = numbers of a worker's slice of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PIECE = 1 << 16
FAILED = math.inf
"""In place of weights: the first worker could not decide."""


@dataclass(slots=True)
class Slices:
    """This worker's slice of everybody's vector, on its way."""

    work: Any
    slice_WS: Tensor

    def arrived(self) -> Tensor:
        self.work.wait()
        return self.slice_WS


class SteeringCollectives:
    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self._first = dist.get_global_rank(group, 0)
        self.by_nccl = device.type == "cuda" and "nccl" in str(dist.get_backend(group)).lower()
        # Gloo knows some collectives for host memory only.
        self.wire = device if self.by_nccl else torch.device("cpu")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def swap(self, vector_N: Tensor) -> Slices:
        """Begins to hand every worker its slice of this one's vector."""
        padding = -len(vector_N) % self.world
        sent = torch.nn.functional.pad(vector_N.to(self.wire), (0, padding))
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self.group, async_op=True)
        return Slices(work, received.view(self.world, -1))

    def gram(self, slices: Sequence[Tensor], square: float | Tensor) -> tuple[Tensor, Tensor] | None:
        """The Gram matrix of everybody's vectors and their own squares, on the first worker; None elsewhere."""
        message = torch.zeros(self.world + 1, self.world, dtype=torch.float64, device=self.wire)
        for slice_WS in slices:
            for piece in slice_WS.split(PIECE, dim=1):
                # In float64, which neither autocast nor TF32 touch: backward may run under either.
                wide = piece.double()
                message[:-1] += wide @ wide.T
        message[-1, self.rank] = square
        dist.reduce(message, self._first, group=self.group)
        return (message[:-1].cpu(), message[-1].cpu()) if self.is_first else None

    def verdict(self, decide: Callable[[], Sequence[float]]) -> list[float]:
        """What the first worker decides, on every worker. Where it cannot, all fail."""
        word_W = torch.full((self.world,), FAILED, dtype=torch.float64)
        error: Exception | None = None
        if self.is_first:
            try:
                word_W = torch.tensor(decide(), dtype=torch.float64)
            except Exception as raised:
                error = raised
        word_W = word_W.to(self.wire)
        dist.broadcast(word_W, self._first, group=self.group)
        if error is not None:
            raise error
        weight_W: list[float] = word_W.tolist()
        if FAILED in weight_W:
            raise RuntimeError("The weighting failed on the first worker; its error is said there. No step was taken.")
        return weight_W

    def add_up(self, buffer_N: Tensor, weight: float) -> Any:
        """Begins to sum everybody's weighted vector, in place."""
        if weight == 0:
            # Not multiplied: what is not finite stays so.
            buffer_N.zero_()
        elif self.by_nccl and buffer_N.is_floating_point():
            # Multiplies on the way, without a pass over memory of its own.
            scaled = dist._make_nccl_premul_sum(weight)  # type: ignore[attr-defined]
            return dist.all_reduce(buffer_N, op=scaled, group=self.group, async_op=True)
        else:
            buffer_N.mul_(weight)
        return dist.all_reduce(buffer_N, group=self.group, async_op=True)

    def put_together(self, buffer_N: Tensor, slice_S: Tensor) -> None:
        """Fills a vector with everybody's slices of it."""
        whole = torch.empty(self.world * len(slice_S), dtype=slice_S.dtype, device=self.wire)
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name from torch 2.13 on
        gather(whole, slice_S, group=self.group)
        buffer_N.copy_(whole[: len(buffer_N)])
