"""The seeded choices of the sketch: which row is rotated how far, and which sign an element gets.

Every number here is part of the definition that all backends share; none may depend on rank, device or bucket layout.
Suffixes give shapes: R = rows.
"""

from __future__ import annotations

from hashlib import blake2s
from typing import TypeVar

import torch
from torch import Tensor

LANES = 16
TABLE_STARTS = 1 << 14
_MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B9
_Word = TypeVar("_Word", int, Tensor)


def mix32(word: _Word) -> _Word:
    """The 32-bit finaliser "lowbias32", on 64-bit integers: torch multiplies no unsigned 32-bit ones."""
    word = word & _MASK
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & _MASK
    word = ((word ^ (word >> 15)) * 0x846CA68B) & _MASK
    return word ^ (word >> 16)


def sequence(seed: int, count: int, device: torch.device | None = None) -> Tensor:
    """The first `count` words of the stream that `seed` starts."""
    return mix32(seed + torch.arange(count, device=device) * GOLDEN)


def window_seed(window_start: int) -> int:
    """The seed shared by all ranks while they listen in the window that starts at this step."""
    return mix32(mix32(window_start ^ 0x756E6973) + (window_start >> 32))


def parameter_key(name: str) -> int:
    """32 bits that stand for a parameter, from its canonical name."""
    return int.from_bytes(blake2s(name.encode(), digest_size=4).digest(), "little")


def row_words(key_R: Tensor, row_R: Tensor, seed: int) -> Tensor:
    """h_r: the word from which row r takes its rotation, its place in the sign table and its own sign."""
    return mix32(mix32(key_R ^ seed) + row_R * GOLDEN)


def slice_rotations(seed: int) -> Tensor:
    """Sixteen rotations in steps of one element whose lanes (mod 16) are all different."""
    lanes = sequence(mix32(seed ^ 0x6C616E65), LANES).argsort(stable=True)
    return (sequence(mix32(seed ^ 0x736C6963), LANES) >> 20) * LANES + lanes


def block_rotations(seed: int, count: int, device: torch.device) -> Tensor:
    """The 16-bit rotations of the blocks that `narrow` adds up."""
    return sequence(mix32(seed ^ 0x6E617272), count, device) >> 16


def sign_words(seed: int, length: int, device: torch.device) -> Tensor:
    """16 bits for each group of 16 entries of the sign table for rows of `length`; a set bit stands for -1."""
    groups = torch.arange(TABLE_STARTS + length // LANES, device=device)
    return mix32(groups * 0x85EBCA6B + mix32(seed ^ 0x7369676E)) & 0xFFFF


def sign_table(seed: int, length: int, device: torch.device) -> Tensor:
    """Signs +-1 in float32 for rows of `length`: entry i is bit i % 16 of word i // 16."""
    bits = (sign_words(seed, length, device)[:, None] >> torch.arange(LANES, device=device)) & 1
    return (1 - 2 * bits).flatten().to(torch.float32)
