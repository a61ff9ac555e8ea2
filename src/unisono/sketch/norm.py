"""Squared norms to seven digits, which torch's own CPU norm does not give on large tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from unisono.sketch.native import kernel_for, parts_for

PIECE = 1 << 17
# The most that torch does on a CPU without sharing the work: on a busy machine, threads that wait for each other at
# every piece take a hundred times as long as one alone.
PIECE_FOR_ONE = 1 << 15


def squared_norm(tensor: Tensor) -> Tensor:
    """In float64 and still on the tensor's device."""
    return torch.as_tensor(measure_norm(tensor), dtype=torch.float64)


def measure_norm(tensor: Tensor) -> float | Tensor:
    """As `squared_norm`, but a plain number where that is cheaper to make."""
    kernel = kernel_for(tensor)
    if kernel is None:
        return torch_squared_norm(tensor)
    count = tensor.numel()
    return kernel.square(tensor.data_ptr(), count, parts_for(count))


@torch.no_grad()
def torch_squared_norm(tensor: Tensor) -> Tensor:
    """The reference: squares of pieces that fit a cache, their sums added in float64."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat_N = tensor.reshape(-1)
    squares = Squares(flat_N)
    for piece in flat_N.split(squares.piece):
        squares.add(piece)
    return squares.total()


class Squares:
    """Sums of squares of the pieces of one tensor, in memory that is used again for each."""

    def __init__(self, flat_N: Tensor) -> None:
        wide = torch.float64 if flat_N.dtype == torch.float64 else torch.float32
        self.piece = PIECE_FOR_ONE if flat_N.is_cpu and torch.get_num_threads() > 1 else PIECE
        self._square_N = flat_N.new_empty(min(self.piece, flat_N.shape[0]), dtype=wide)
        self._sums = [self._square_N.new_zeros(())]
        self._wide_N = None if flat_N.dtype == wide else torch.empty_like(self._square_N)

    def add(self, piece: Tensor) -> Tensor:
        """Of at most `piece` numbers, given back in float32, float64 if they are: to be used before the next ones."""
        count = piece.shape[0]
        wide_piece = piece if self._wide_N is None else self._wide_N[:count].copy_(piece)
        # Not a dot: its few running sums are off by 4e-6 for widened bfloat16 rows and by 2e-5 for constant ones.
        self._sums.append(torch.mul(wide_piece, wide_piece, out=self._square_N[:count]).sum())
        return wide_piece

    def total(self) -> Tensor:
        return torch.stack(self._sums).sum(dtype=torch.float64)
