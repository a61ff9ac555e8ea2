"""Squared norms to seven digits, which torch's own CPU norm does not give on large tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from unisono.sketch.native import kernel_for

PIECE = 1 << 16


def squared_norm(tensor: Tensor) -> Tensor:
    """In float64 and still on the tensor's device."""
    return torch.as_tensor(measure_norm(tensor), dtype=torch.float64)


def measure_norm(tensor: Tensor) -> float | Tensor:
    """As `squared_norm`, but a plain number where that is cheaper to make."""
    kernel = kernel_for(tensor)
    return torch_squared_norm(tensor) if kernel is None else kernel.square(tensor.data_ptr(), tensor.numel())


@torch.no_grad()
def torch_squared_norm(tensor: Tensor) -> Tensor:
    """The reference: squares of pieces that fit a cache, their sums added in float64."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    squares = [piece.to(wide).square().sum() for piece in tensor.reshape(-1).split(PIECE)]
    return torch.stack(squares).sum(dtype=torch.float64)
