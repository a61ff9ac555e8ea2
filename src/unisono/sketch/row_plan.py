"""What a seed decides about the rows of every parameter.

Suffixes give shapes: P = parameters, R = rows, of one parameter or of all one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unisono.sketch.hashing import (
    LANES,
    TABLE_STARTS,
    parameter_key,
    row_words,
    sign_table,
    sign_words,
    slice_rotations,
)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Per row of one parameter: where it lands in the sketch, where its signs start in the table, its own sign."""

    rotations: list[int]
    offsets: list[int]
    signs: list[int]


class Rows:
    """The rows of all parameters, hashed together: hundreds of small tensors would cost more than the fold."""

    def __init__(self, names: Sequence[str], elements: Sequence[int], length: int) -> None:
        self.length = length
        self.counts = [-(-count // length) for count in elements]
        count_P = torch.tensor(self.counts, dtype=torch.int64)
        first_P = count_P.cumsum(0) - count_P
        self.firsts: list[int] = first_P.tolist()
        key_P = torch.tensor([parameter_key(name) for name in names], dtype=torch.int64)
        self.key_R = key_P.repeat_interleave(count_P)
        self.row_R = torch.arange(len(self.key_R)) - first_P.repeat_interleave(count_P)


class SeedChoices:
    """All that one seed decides. Each part is made when first needed: no way to fold needs all of them."""

    def __init__(self, rows: Rows, seed: int, device: torch.device) -> None:
        self.rows, self.seed, self.device = rows, seed, device

    @cached_property
    def table(self) -> Tensor:
        return sign_table(self.seed, self.rows.length, self.device)

    @cached_property
    def words(self) -> Tensor:
        return sign_words(self.seed, self.rows.length, self.device).to(torch.int32)

    @cached_property
    def per_row(self) -> Tensor:
        """Rotation, offset and sign of each row, in int32."""
        rows = self.rows
        word_R = row_words(rows.key_R, rows.row_R, self.seed)
        slice_rotation_R = slice_rotations(self.seed)[(rows.row_R + rows.key_R) % LANES]
        rotation_R = ((word_R >> 20) * LANES + slice_rotation_R) % rows.length
        offset_R = (word_R & (TABLE_STARTS - 1)) * LANES
        # Without its own sign, a row that shares table entries and buckets with another adds up instead of cancelling.
        sign_R = 1 - 2 * ((word_R >> 14) & 1)
        return torch.stack((rotation_R, offset_R, sign_R), 1).to(torch.int32)

    @cached_property
    def plans(self) -> list[RowPlan]:
        columns = self.per_row.T.contiguous()
        return [RowPlan(*part.tolist()) for part in torch.split(columns, self.rows.counts, 1)]
