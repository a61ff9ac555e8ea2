"""Starts a worker's random streams anew, from numbers that no other worker gets."""

from __future__ import annotations

import random
import sys
from hashlib import blake2b
from typing import Any

import torch


def reseed(seed: int, worker: int) -> None:
    """The streams of torch on the host and on all its devices, of Python, and of numpy where it is in use."""
    torch.manual_seed(_number(seed, worker, "torch"))
    random.seed(_number(seed, worker, "python"))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(_number(seed, worker, "numpy") % (1 << 32))


def _number(seed: int, worker: int, stream: str) -> int:
    """63 bits, the same in every process."""
    return int.from_bytes(blake2b(f"{seed} {worker} {stream}".encode(), digest_size=8).digest(), "little") >> 1
