"""Exact fingerprints of tensors: equal bits give equal numbers, and one different bit gives another number.

The definition, in integers modulo 2^64, is the same in C and in torch and on every device. A tensor's bytes, in logical
row-major order and with zeros after the last, are read as 32-bit words with sign, in rows of 65,536. Its hash is

    sum over rows i and columns j of  word_ij * COLUMN_j * ROW_i  +  a number for its type and shape

with odd factors, so that no change of a single word is lost. The hashes of a list are mixed with their places and
added. Suffixes give shapes: R = rows, J = columns, N = elements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

from unisono.distinct import FACTORS, GOLDEN, splitmix64
from unisono.sketch import native

COLUMNS = 65_536
# One by one on a CPU, where products then stay in its caches and torch sums a single row seven times faster; elsewhere
# many to a launch, up to 32 MB of products.
_ROWS_ON_CPU, _ROWS_ON_DEVICE = 1, 64
_ELEMENTS_AT_ONCE = 1 << 20
_WORD_BYTES = 4
_COLUMN_SEED, _ROW_SEED, _SIGN_SEED = 0x636F6C756D6E, 0x726F77, 0x7369676E
_NOTHING = 0x6E6F6E65
_SAME_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


@torch.no_grad()
def fingerprint(tensors: Sequence[Tensor | None], seed: int = 0) -> int | Tensor:
    """
    64 bits that stand for these tensors: their values bit by bit, types, shapes and order.

    A number where all of them lie on the CPU. Where one does not, a tensor on its device, which nobody waited for;
    only sparse tensors that are not coalesced make the host wait.
    """
    known, pending = 0, []
    for place, tensor in enumerate(tensors):
        offset = place * GOLDEN + (_NOTHING if tensor is None else _form(tensor.dtype, tensor.layout, tensor.shape))
        found = 0 if tensor is None else _content(tensor)
        if isinstance(found, Tensor):
            pending.append(found + _signed(offset))
        else:
            known += splitmix64(found + offset)
    known += splitmix64(seed)
    if not pending:
        return _signed(splitmix64(known))
    device = pending[0].device
    hashes = torch.stack([found.to(device, non_blocking=True) for found in pending])
    return _mixed(_mixed(hashes).sum() + _signed(known))


@torch.no_grad()
def projections(tensor: Tensor, seed: int, count: int = 4) -> tuple[float, ...] | Tensor:
    """
    Sums of all values of a dense tensor under random signs, in float64: as many as `count`, at most 64.

    The mean squared difference of two workers' sums estimates the squared distance between their tensors.
    """
    flat_N = _flat(tensor)
    flat_N = torch.view_as_real(flat_N).flatten() if flat_N.is_complex() else flat_N
    sums = torch.zeros(count, dtype=torch.float64, device=flat_N.device)
    for begin in range(0, flat_N.shape[0], _ELEMENTS_AT_ONCE):
        value_N = flat_N[begin : begin + _ELEMENTS_AT_ONCE].to(torch.float64)
        place_N = torch.arange(begin, begin + value_N.shape[0], device=flat_N.device)
        bits_N = _mixed(place_N * _signed(GOLDEN) + _signed(splitmix64(seed ^ _SIGN_SEED)))
        for number in range(count):
            sums[number] += torch.where((bits_N >> number) & 1 == 0, value_N, -value_N).sum()
    return tuple(sums.tolist()) if sums.is_cpu else sums


@torch.no_grad()
def sample(tensor: Tensor, most: int = 4096) -> Tensor:
    """
    Every n-th value in logical order, n odd, as a copy on the host.

    From CUDA it arrives in pinned memory when the work of the current stream is done; nobody waits for it here.
    """
    tensor = _parts(tensor.detach())[-1].resolve_conj().resolve_neg()
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
        dense = _dense(part)
        found.update(f"{part.dtype} {tuple(part.shape)};".encode())
        found.update(ctypes.string_at(dense.data_ptr(), dense.nbytes))
    return int.from_bytes(found.digest(), "little", signed=True)


def rows(tensor: Tensor, most: int = 64) -> int:
    """How many of the first rows of a tensor on the host differ from each other; a tensor without rows is one."""
    return 1 if tensor.dim() == 0 else len({fingerprint([row]) for row in tensor[:most].unbind()})


def _content(tensor: Tensor) -> int | Tensor:
    """The sum in the definition, without the number for type and shape."""
    if tensor.layout is not torch.strided:
        return fingerprint(_parts(tensor))
    dense = _dense(tensor)
    if dense.numel() == 0:
        return 0
    if native.FINGERPRINT is not None and type(dense) is Tensor and dense.is_cpu:
        return _weighted_in_c(dense, native.FINGERPRINT)
    found = _weighted(_flat(dense))
    return int(found) if found.is_cpu else found


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Dense tensors that together hold the values of a sparse one, the values last; of a dense one, itself."""
    if tensor.layout is torch.strided:
        return (tensor,)
    entries = tensor.to_sparse().coalesce()
    return entries.indices(), entries.values()


def _dense(tensor: Tensor) -> Tensor:
    """The same values one after the other in memory, in logical order; no copy where they lie so already."""
    tensor = tensor.detach()
    if type(tensor) is not Tensor and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__:
        tensor = tensor.as_subclass(Tensor)
    return tensor.resolve_conj().resolve_neg().contiguous()


def _flat(tensor: Tensor) -> Tensor:
    dense = _dense(tensor)
    # Not `view(-1)`: the only element of a slice keeps its stride there, and then cannot be read as another type.
    return dense.as_strided((dense.numel(),), (1,))


def _weighted_in_c(dense: Tensor, kernel: native.Fingerprint) -> int:
    lower_J, upper_J = _halves(_COLUMN_SEED, COLUMNS)
    row_R = _row_factors(_rows_of(dense), dense.device)
    return kernel(dense.data_ptr(), dense.nbytes, lower_J.data_ptr(), upper_J.data_ptr(), row_R.data_ptr())


def _weighted(flat_N: Tensor) -> Tensor:
    """The sum in torch."""
    column_J = _odd(_COLUMN_SEED, COLUMNS, flat_N.device)
    sums = [(word_RJ * column_J[: word_RJ.shape[1]]).sum(1) for word_RJ in _blocks(flat_N)]
    count = _rows_of(flat_N)
    # The factor of the first row is one, and most tensors have no other row.
    return sums[0][0] if count == 1 else (torch.cat(sums) * _row_factors(count, flat_N.device)[:count]).sum()


def _rows_of(dense: Tensor) -> int:
    return -(-dense.nbytes // (_WORD_BYTES * COLUMNS))


def _blocks(flat_N: Tensor) -> Iterator[Tensor]:
    """Words in blocks of whole rows, then what is left as a shorter row."""
    per_row = _WORD_BYTES * COLUMNS // flat_N.element_size()
    whole = flat_N.numel() // per_row * per_row
    at_once = _ROWS_ON_CPU if flat_N.is_cpu else _ROWS_ON_DEVICE
    for block in flat_N[:whole].split(at_once * per_row) if whole else ():
        yield _words(block).view(-1, COLUMNS)
    if flat_N.numel() > whole:
        yield _words(flat_N[whole:])[None]


def _words(flat_N: Tensor) -> Tensor:
    count, begin = flat_N.nbytes, flat_N.storage_offset() * flat_N.element_size()
    if count % _WORD_BYTES == 0 and begin % _WORD_BYTES == 0:
        return flat_N.view(torch.int32)
    words = torch.zeros(-(-count // _WORD_BYTES), dtype=torch.int32, device=flat_N.device)
    words.view(torch.uint8)[:count] = flat_N.view(torch.uint8)
    return words


def _row_factors(count: int, device: torch.device) -> Tensor:
    """At least `count` of them: as many as the next power of two, so that few lengths are kept."""
    return _odd(_ROW_SEED, max(1024, 1 << (count - 1).bit_length()), device)


@lru_cache(maxsize=64)
def _odd(seed: int, count: int, device: torch.device) -> Tensor:
    """A one, then the odd factors that splitmix64 gives from this seed on."""
    found = _mixed(torch.arange(count, device=device) * _signed(GOLDEN) + seed) | 1
    found[0] = 1
    if found.is_cuda:
        # Once: the next to use them may do so in another stream.
        torch.cuda.current_stream(device).synchronize()
    return found


@lru_cache(maxsize=8)
def _halves(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Lower and upper 32 bits of factors, both with sign, for native code: factor = lower + 2^32 * upper."""
    factor = _odd(seed, count, torch.device("cpu"))
    lower = factor.to(torch.int32)
    return lower, ((factor - lower) >> 32).to(torch.int32)


@lru_cache(maxsize=4096)
def _form(dtype: torch.dtype, layout: torch.layout, shape: torch.Size) -> int:
    """A number for what a tensor is, apart from its values."""
    text = f"{dtype} {layout} {tuple(shape)}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mixed(word: Tensor) -> Tensor:
    """As `splitmix64`, for 64-bit integers, which wrap around in torch."""
    word = word + _signed(GOLDEN)
    word = (word ^ _shifted(word, 30)) * _signed(FACTORS[0])
    word = (word ^ _shifted(word, 27)) * _signed(FACTORS[1])
    return word ^ _shifted(word, 31)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """To the right, with zeros coming in: torch would repeat the sign."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return ((word + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)
