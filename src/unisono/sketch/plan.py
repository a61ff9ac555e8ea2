"""What a seed decides about the rows of every parameter, computed once per window.

Suffixes give shapes: P = parameters, R = rows, of one parameter or of all one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unisono.sketch.hashing import LANES, TABLE_STARTS, parameter_key, row_words, slice_rotations


@dataclass(frozen=True, slots=True)
class Plan:
    """Per row of one parameter: where it lands in the sketch, where its signs start in the table, its own sign."""

    rotations: list[int]
    offsets: list[int]
    signs: list[int]


def make_plans(names: Sequence[str], elements: Sequence[int], length: int, seed: int) -> list[Plan]:
    """The plans of all parameters, hashed together: hundreds of small ones would cost more than the fold."""
    key_P = torch.tensor([parameter_key(name) for name in names], dtype=torch.int64)
    rows = [-(-count // length) for count in elements]
    rows_P = torch.tensor(rows, dtype=torch.int64)
    key_R = key_P.repeat_interleave(rows_P)
    row_R = torch.arange(len(key_R)) - (rows_P.cumsum(0) - rows_P).repeat_interleave(rows_P)
    word_R = row_words(key_R, row_R, seed)
    slice_rotation_R = slice_rotations(seed)[(row_R + key_R) % LANES]
    rotation_R = ((word_R >> 20) * LANES + slice_rotation_R) % length
    offset_R = (word_R & (TABLE_STARTS - 1)) * LANES
    # Without a sign of its own, a row that shares table entries and buckets with another adds up instead of cancelling.
    sign_R = 1 - 2 * ((word_R >> 14) & 1)
    columns = (_lists(choice_R, rows) for choice_R in (rotation_R, offset_R, sign_R))
    return [Plan(*lists) for lists in zip(*columns, strict=True)]


def _lists(choice_R: Tensor, rows: list[int]) -> list[list[int]]:
    return [part.tolist() for part in torch.split(choice_R, rows)]
