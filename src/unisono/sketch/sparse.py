"""The same fold for sparse gradients, element by element.

Suffixes give shapes: S = stored entries, D = real elements of one entry, E = elements of a block of entries, R = rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unisono.sketch.row_plan import RowPlan

_BLOCK = 65_536


def fold_sparse(gradient: Tensor, plan: RowPlan, table: Tensor, accumulator_2K: Tensor, start: int) -> Tensor:
    """Add a COO gradient, coalesced or not, to the accumulator; its squared norm in float64."""
    gradient = gradient.coalesce()
    value_SD = _values(gradient)
    begin_S = start + _entry_index(gradient) * value_SD.shape[1]
    inner_D = torch.arange(value_SD.shape[1], device=value_SD.device)
    entries = max(1, _BLOCK // max(1, value_SD.shape[1]))
    locate = _Locator(plan, table, accumulator_2K.shape[0] // 2)
    squares = []
    for block_begin, block in zip(torch.split(begin_S, entries), torch.split(value_SD, entries), strict=True):
        value_E = block.flatten().to(torch.float64 if block.dtype == torch.float64 else torch.float32)
        bucket_E, sign_E = locate((block_begin[:, None] + inner_D).flatten())
        accumulator_2K.index_add_(0, bucket_E, (sign_E * value_E).to(accumulator_2K.dtype))
        squares.append(value_E.square().sum())
    return torch.stack(squares).sum(dtype=torch.float64)


class _Locator:
    """Bucket and sign of single elements, given by their index in the parameter."""

    def __init__(self, plan: RowPlan, table: Tensor, length: int) -> None:
        choices = (plan.rotations, plan.offsets, plan.signs)
        self.choice_3R = torch.tensor(choices, dtype=torch.int64, device=table.device)
        self.table, self.length = table, length

    def __call__(self, index_E: Tensor) -> tuple[Tensor, Tensor]:
        column_E = index_E % self.length
        rotation_E, offset_E, sign_E = self.choice_3R[:, index_E // self.length]
        return (column_E + rotation_E) % self.length, self.table[offset_E + column_E] * sign_E


def _values(gradient: Tensor) -> Tensor:
    values = gradient.values()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.reshape(values.shape[0], math.prod(values.shape[1:]))


def _entry_index(gradient: Tensor) -> Tensor:
    """The row-major index of each stored entry among all entries."""
    indices = gradient.indices()
    index_S = indices.new_zeros(indices.shape[1])
    for coordinate_S, size in zip(indices, gradient.shape, strict=False):
        index_S = index_S * size + coordinate_S
    return index_S
