"""How long a sketch is, and how to shorten one."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from unisono.sketch.hashing import block_rotations

SHORTEST, LONGEST = 1_024, 65_536


def default_length(total_elements: int) -> int:
    """The smallest power of two that is not below the model's size, from 1,024 to 65,536."""
    return min(max(1 << max(total_elements - 1, 0).bit_length(), SHORTEST), LONGEST)


def check_length(length: int) -> int:
    if not SHORTEST <= length <= LONGEST or length & (length - 1):
        raise ValueError(
            f"Parameter `length` should be a power of two from {SHORTEST} to {LONGEST}. Found `length = {length}`."
        )
    return length


def narrow(sketch: Tensor, length: int, seed: int) -> Tensor:
    """Shorten sketches (..., K) to `length`: the sum of their K / length blocks, each rotated by the seed's choice."""
    blocks = sketch.reshape(*sketch.shape[:-1], -1, check_length(length))
    return blocks.gather(-1, _sources(seed, blocks.shape[-2], length, sketch.device).expand_as(blocks)).sum(-2)


@lru_cache(maxsize=8)
def _sources(seed: int, blocks: int, length: int, device: torch.device) -> Tensor:
    """From where in its block each number comes."""
    return (torch.arange(length, device=device) - block_rotations(seed, blocks, device)[:, None]) % length
