"""Squared norms to seven digits, which torch's own CPU norm does not give on large tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from unisono.sketch import native

PIECE = 1 << 16


def squared_norm(tensor: Tensor) -> Tensor:
    """In float64 and still on the tensor's device."""
    return torch.as_tensor(measure_norm(tensor), dtype=torch.float64)


def measure_norm(tensor: Tensor) -> float | Tensor:
    """As `squared_norm`, but a plain number where that is cheaper to make."""
    if native.serves(tensor):
        return native.squared_norm(tensor)
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return _sum_of_squares(tensor.detach().reshape(-1))


def _sum_of_squares(flat_N: Tensor) -> Tensor:
    """Squares of pieces that fit a cache, their sums added in float64."""
    wide = torch.float64 if flat_N.dtype == torch.float64 else torch.float32
    squares = [piece.to(wide).square().sum() for piece in flat_N.split(PIECE)]
    return torch.stack(squares).sum(dtype=torch.float64)
