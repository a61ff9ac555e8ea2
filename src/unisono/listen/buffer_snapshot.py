"""Buffers, such as BatchNorm's statistics, as they were before a forward pass that turned out not to count."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BufferSnapshot:
    def __init__(self) -> None:
        self._before: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def remember(self, module: nn.Module) -> None:
        self._before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]

    @property
    def remembered(self) -> list[tuple[Tensor, Tensor]]:
        """Each with what it was."""
        return self._before

    @property
    def empty(self) -> bool:
        return not self._before

    @torch.no_grad()
    def put_back(self) -> None:
        for buffer, before in self._before:
            buffer.copy_(before)
        self.forget()

    def forget(self) -> None:
        self._before = []
