"""What a tensor holds, as it lies in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def parts_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Dense tensors that together hold the values of a sparse one, the values last; of a dense one, itself."""
    if tensor.layout is torch.strided:
        return (tensor,)
    entries = tensor.to_sparse().coalesce()
    return entries.indices(), entries.values()


def dense_of(tensor: Tensor) -> Tensor:
    """The same values one after the other in memory, in logical order; no copy where they lie so already."""
    tensor = tensor.detach()
    if type(tensor) is not Tensor:
        # One without memory of its own stays what it is.
        tensor = tensor.as_subclass(Tensor)
    return tensor.resolve_conj().resolve_neg().contiguous()


def flat_of(tensor: Tensor) -> Tensor:
    dense = dense_of(tensor)
    # Not `view(-1)`: the only element of a slice keeps its stride there, and then cannot be read as another type.
    return dense.as_strided((dense.numel(),), (1,))
