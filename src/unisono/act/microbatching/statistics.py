"""BatchNorm's statistics, and all other buffers of a model, without what rejected micro-batches left in them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Statistics:
    """Every micro-batch of a step starts from the same buffers; in the end they are the mean of the kept ones'."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: dict[str, Tensor] | None = None
        self._after: list[dict[str, Tensor]] = []

    def begin(self) -> None:
        if self._before is None:
            self._before = self._copies()

    def take(self) -> None:
        self._after.append(self._copies())
        self.undo()

    def undo(self) -> None:
        self._put(self._before or {})
        if not self._after:
            self._before = None

    def settle(self, kept: list[int]) -> None:
        """Called once a step; from here the next step begins."""
        if kept:
            after = [self._after[worker] for worker in kept]
            self._put({name: _together([buffers[name] for buffers in after]) for name in after[0]})
        self._before, self._after = None, []

    def _copies(self) -> dict[str, Tensor]:
        return {name: buffer.detach().clone() for name, buffer in self._model.named_buffers()}

    @torch.no_grad()
    def _put(self, buffers: dict[str, Tensor]) -> None:
        for name, buffer in self._model.named_buffers():
            # Caches that appear or grow in the forward pass are no statistics.
            if name in buffers and buffers[name].shape == buffer.shape:
                buffer.copy_(buffers[name])


def _together(values: list[Tensor]) -> Tensor:
    """The mean; of counts and flags the first."""
    alike = len({value.shape for value in values}) == 1
    return torch.stack(values).mean(0) if alike and values[0].is_floating_point() else values[0]
