"""Smaller than a fingerprint, and telling less: random projections, samples of batches, what is counted in them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from unisono.sketch.fingerprint.memory import dense_of, flat_of, parts_of
from unisono.sketch.fingerprint.mixing import GOLDEN, mixed, signed, splitmix64

_ELEMENTS_AT_ONCE = 1 << 20
_SIGN_SEED = 0x7369676E
_SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


@torch.no_grad()
def projections(tensor: Tensor, seed: int, count: int = 4) -> tuple[float, ...] | Tensor:
    """
    Sums of all values of a dense tensor under random signs, in float64: as many as `count`, at most 64.

    The mean squared difference of two workers' sums estimates the squared distance between their tensors.
    """
    flat_N = flat_of(tensor)
    flat_N = torch.view_as_real(flat_N).flatten() if flat_N.is_complex() else flat_N
    sums = torch.zeros(count, dtype=torch.float64, device=flat_N.device)
    for begin in range(0, flat_N.shape[0], _ELEMENTS_AT_ONCE):
        value_N = flat_N[begin : begin + _ELEMENTS_AT_ONCE].to(torch.float64)
        place_N = torch.arange(begin, begin + value_N.shape[0], device=flat_N.device)
        bits_N = mixed(place_N * signed(GOLDEN) + signed(splitmix64(seed ^ _SIGN_SEED)))
        for number in range(count):
            sums[number] += torch.where((bits_N >> number) & 1 == 0, value_N, -value_N).sum()
    return tuple(sums.tolist()) if sums.is_cpu else sums


@torch.no_grad()
def sample(tensor: Tensor, most: int = 4096) -> Tensor:
    """
    Every n-th value in logical order, n odd, as a copy on the host.

    From CUDA it arrives in pinned memory when the work of the current stream is done; nobody waits for it here.
    """
    tensor = parts_of(tensor.detach())[-1].resolve_conj().resolve_neg()
    step = -(-tensor.numel() // most) | 1
    # Not a slice of the flat tensor: to flatten one that is not contiguous is to copy all of it.
    place = torch.arange(0, tensor.numel(), step, device=tensor.device)
    chosen = tensor.view(_SAME_SIZE[tensor.element_size()]).take(place).view(tensor.dtype)
    if not chosen.is_cuda:
        return chosen.cpu()
    return torch.empty(chosen.shape, dtype=chosen.dtype, device="cpu", pin_memory=True).copy_(chosen, non_blocking=True)


def digest(parts: Sequence[Tensor]) -> int:
    """64 bits that stand for small tensors on the host: their values bit by bit, types, shapes and order."""
    found = blake2b(digest_size=8)
    for part in parts:
        dense = dense_of(part)
        found.update(f"{part.dtype} {tuple(part.shape)};".encode())
        found.update(ctypes.string_at(dense.data_ptr(), dense.nbytes))
    return int.from_bytes(found.digest(), "little", signed=True)


def hash_of(numbers: Sequence[object]) -> int:
    """64 bits that stand for plain numbers, the same in every process: Python's own hash of texts and NaN is not."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little", signed=True)


def rows(tensor: Tensor, most: int = 64) -> int:
    """How many of the first rows of a tensor on the host differ from each other; a tensor without rows is one."""
    if tensor.dim() == 0:
        return 1
    dense = dense_of(tensor[:most])
    size = dense.nbytes // max(1, len(dense))
    memory = ctypes.string_at(dense.data_ptr(), dense.nbytes)
    return len({memory[row * size : (row + 1) * size] for row in range(len(dense))})
