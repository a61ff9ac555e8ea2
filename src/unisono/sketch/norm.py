"""Squared norms to seven digits, which torch's own CPU norm does not give on large tensors."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 4_096
PIECE = 1 << 20


@torch.no_grad()
def squared_norm(tensor: Tensor) -> Tensor:
    """In float64 and still on the tensor's device: float32 norms of short chunks, squared and summed in float64."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.reshape(-1)
    if flat.dtype in (torch.float32, torch.float64):
        return _of_piece(flat)
    pieces = [_of_piece(piece.float()) for piece in flat.split(PIECE)]
    return torch.stack(pieces).sum() if pieces else flat.new_zeros((), dtype=torch.float64)


def _of_piece(flat: Tensor) -> Tensor:
    whole = flat.numel() // CHUNK * CHUNK
    norms: Tensor = torch.linalg.vector_norm(flat[:whole].view(-1, CHUNK), dim=1).double()
    rest: Tensor = torch.linalg.vector_norm(flat[whole:]).double()
    return norms.square().sum() + rest.square()
