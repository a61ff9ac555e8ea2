"""The fold in C, where it was built: the same numbers up to summation order, several times faster.

The library lies beside this file. Where it is missing or does not load, and with `UNISONO_NATIVE=off` in the
environment, the fold in torch does the work.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from unisono.sketch.plan import Choices

LIBRARY = Path(__file__).with_name("_fold.so")
_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_ROW_BYTES = 3 * 4
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


@dataclass(frozen=True, slots=True)
class Kernel:
    """The functions for one type of numbers."""

    fold: Callable[[int, int, int, int, int, int, int], float]
    square: Callable[[int, int], float]


def load(path: Path = LIBRARY) -> dict[torch.dtype, Kernel]:
    """Empty where there is no library that fits this machine and these sources."""
    if os.environ.get("UNISONO_NATIVE") == "off":
        return {}
    try:
        library = ctypes.CDLL(str(path))
        return {dtype: _kernel(library, suffix) for dtype, suffix in _SUFFIXES.items()}
    except (OSError, AttributeError):
        return {}


def _kernel(library: ctypes.CDLL, suffix: str) -> Kernel:
    fold, square = library[f"unisono_fold_{suffix}"], library[f"unisono_square_{suffix}"]
    fold.argtypes = [_POINTER, _COUNT, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER]
    square.argtypes = [_POINTER, _COUNT]
    fold.restype = square.restype = ctypes.c_double
    return Kernel(fold, square)


KERNELS = load()


def available() -> bool:
    return bool(KERNELS)


def serves(tensor: Tensor) -> bool:
    """Whether the library can read this tensor. None of a subclass: its memory may lie elsewhere."""
    return (
        type(tensor) is Tensor
        and tensor.dtype in KERNELS
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def squared_norm(tensor: Tensor) -> float:
    """Of a tensor that `serves` accepts."""
    return KERNELS[tensor.dtype].square(tensor.data_ptr(), tensor.numel())


class NativeFold:
    """The fold of one seed's choices; where they lie in memory is looked up once, not for every gradient."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._length = choices.rows.length

    @cached_property
    def _words_at(self) -> int:
        return self._choices.words.data_ptr()

    @cached_property
    def _rows_at(self) -> list[int]:
        begin = self._choices.per_row.data_ptr()
        return [begin + _ROW_BYTES * first for first in self._choices.rows.firsts]

    def serves(self, gradient: Tensor, accumulator_2K: Tensor) -> bool:
        return (
            serves(gradient)
            and serves(accumulator_2K)
            and accumulator_2K.dtype is torch.float32
            and accumulator_2K.numel() == 2 * self._length
        )

    def add(self, index: int, gradient: Tensor, accumulator_2K: Tensor, start: int) -> float:
        """Of tensors that `serves` accepts, the gradient ending within its parameter; the gradient's squared norm."""
        return KERNELS[gradient.dtype].fold(
            gradient.data_ptr(),
            gradient.numel(),
            start,
            self._length,
            self._rows_at[index],
            self._words_at,
            accumulator_2K.data_ptr(),
        )
