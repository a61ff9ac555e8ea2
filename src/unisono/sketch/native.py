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
from typing import cast

import torch
from torch import Tensor

from unisono.sketch.row_plan import SeedChoices

LIBRARY = Path(__file__).with_name("_fold.so")
_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_ROW_BYTES = 3 * 4
_FUNCTIONS = [f"unisono_{work}_in_parts_{suffix}" for work in ("fold", "square") for suffix in _SUFFIXES.values()]
_FUNCTIONS += ["unisono_fingerprint"]
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_LEAST_PART, _MOST_PARTS = 1 << 22, 4


@dataclass(frozen=True, slots=True)
class Kernel:
    """The functions for one type of numbers. They believe every address and number they are given."""

    fold: Callable[[int, int, int, int, int, int, int, int], float]
    """Gradient, count, its start in the parameter, K, first row, words, accumulator of 2K, parts: the squared norm."""

    square: Callable[[int, int, int], float]
    """Tensor, count, parts: the squared norm."""


Fingerprint = Callable[[int, int, int, int, int], int]
"""Bytes, their number, lower and upper halves of the factors of columns, factors of rows: the weighted sum of words."""


def load(path: Path = LIBRARY) -> dict[torch.dtype, Kernel]:
    """Empty where there is no library that fits this machine and these sources."""
    library = _library(path)
    return {} if library is None else {dtype: _kernel(library, suffix) for dtype, suffix in _SUFFIXES.items()}


def load_fingerprint(path: Path = LIBRARY) -> Fingerprint | None:
    """None where there is no library that fits this machine and these sources."""
    library = _library(path)
    if library is None:
        return None
    fingerprint = library.unisono_fingerprint
    fingerprint.argtypes = [_POINTER, _COUNT, _POINTER, _POINTER, _POINTER]
    fingerprint.restype = ctypes.c_int64
    return cast("Fingerprint", fingerprint)


def switched_off() -> bool:
    return os.environ.get("UNISONO_NATIVE", "").lower() in {"off", "0", "no", "false"}


def _library(path: Path) -> ctypes.CDLL | None:
    """One that has all of our functions: an older one, which lacks some, is not used at all."""
    if switched_off():
        return None
    try:
        library = ctypes.CDLL(str(path))
        for name in _FUNCTIONS:
            library[name]
    except (OSError, AttributeError):
        return None
    return library


def _kernel(library: ctypes.CDLL, suffix: str) -> Kernel:
    fold, square = (library[f"unisono_{work}_in_parts_{suffix}"] for work in ("fold", "square"))
    fold.argtypes = [_POINTER, _COUNT, _COUNT, _COUNT, _POINTER, _POINTER, _POINTER, _COUNT]
    square.argtypes = [_POINTER, _COUNT, _COUNT]
    fold.restype = square.restype = ctypes.c_double
    return Kernel(fold, square)


KERNELS = load()
FINGERPRINT = load_fingerprint()


def available() -> bool:
    return bool(KERNELS)


def kernel_for(tensor: Tensor) -> Kernel | None:
    """The functions that can read this tensor. None for those of a subclass: their memory may lie elsewhere."""
    if (
        type(tensor) is Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        return KERNELS.get(tensor.dtype)
    return None


def parts_for(count: int) -> int:
    """In how many parts, each with its own thread, so many numbers are read: never more than torch uses itself."""
    return 1 if count < 2 * _LEAST_PART else min(torch.get_num_threads(), _MOST_PARTS, count // _LEAST_PART)


def writable_at(accumulator_2K: Tensor) -> int | None:
    """Its address, if the library can add to it."""
    plain = accumulator_2K.dtype == torch.float32 and kernel_for(accumulator_2K) is not None
    return accumulator_2K.data_ptr() if plain else None


class Addresses:
    """Where the choices of one seed lie in memory: looked up once, not for every gradient."""

    def __init__(self, choices: SeedChoices) -> None:
        self._choices = choices

    @cached_property
    def words(self) -> int:
        return self._choices.words.data_ptr()

    @cached_property
    def rows(self) -> list[int]:
        """Of the first row of each parameter."""
        begin = self._choices.per_row.data_ptr()
        return [begin + _ROW_BYTES * first for first in self._choices.rows.firsts]
