"""Exact fingerprints of tensors: equal bits give equal numbers, and one different bit gives another number.

The definition, in integers modulo 2^64, is the same in C and in torch and on every device. A tensor's bytes, in logical
row-major order and with zeros after the last, are read as 32-bit words with sign, in rows of 65,536. Its hash is

    sum over rows i and columns j of  word_ij * COLUMN_j * ROW_i  +  a number for its type and shape

with odd factors, so that no change of a single word is lost. The hashes of a list are mixed with their places and
added. Suffixes give shapes: R = rows, J = columns, N = elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

import torch
from torch import Tensor

from unisono.sketch import native
from unisono.sketch.fingerprint import device as _device
from unisono.sketch.fingerprint.memory import dense_of, flat_of, parts_of
from unisono.sketch.fingerprint.mixing import GOLDEN, mixed, signed, splitmix64
from unisono.sketch.gpu.launching import available, give_up

COLUMNS = 65_536
# One by one on a CPU, where products then stay in its caches and torch sums a single row seven times faster; elsewhere
# many to a launch, up to 32 MB of products.
_ROWS_ON_CPU, _ROWS_ON_DEVICE = 1, 64
_BYTES_TOGETHER = 4 << 20
_WORD_BYTES = 4
_COLUMN_SEED, _ROW_SEED = 0x636F6C756D6E, 0x726F77
_NOTHING = 0x6E6F6E65


@torch.no_grad()
def fingerprint(tensors: Sequence[Tensor | None], seed: int = 0) -> int | Tensor:
    """
    64 bits that stand for these tensors: their values bit by bit, types, shapes and order.

    A number where all of them lie on the CPU. Where one does not, a tensor on its device, which nobody waited for;
    only sparse tensors that are not coalesced make the host wait.
    """
    known, pending = _hashes([(tensor, place) for place, tensor in enumerate(tensors)])
    total = signed(splitmix64(seed) + sum(known.values()))
    if not pending:
        return total
    first = pending[0][1].device
    return torch.stack([hash_Q.sum().to(first, non_blocking=True) for _, hash_Q in pending]).sum() + total


@torch.no_grad()
def fingerprints(tensors: Sequence[Tensor]) -> list[int | Tensor]:
    """The fingerprint of each of them alone."""
    alone = splitmix64(0)
    known, pending = _hashes([(tensor, 0) for tensor in tensors])
    found: dict[int, int | Tensor] = {number: signed(known[number] + alone) for number in known}
    for numbers, hash_Q in pending:
        found |= dict(zip(numbers, (hash_Q + signed(alone)).unbind(), strict=True))
    return [found[number] for number in range(len(tensors))]


Hashes = tuple[Sequence[int], Tensor]
"""Numbers of some tensors, and their hashes."""


def _hashes(placed: Sequence[tuple[Tensor | None, int]]) -> tuple[dict[int, int], list[Hashes]]:
    """Of each tensor, mixed with its place: known at once, or still on a device."""
    known: dict[int, int] = {}
    together: list[tuple[int, int, Tensor]] = []
    others: list[tuple[int, int, Tensor]] = []
    for number, (tensor, place) in enumerate(placed):
        offset = place * GOLDEN + (_NOTHING if tensor is None else _form(tensor.dtype, tensor.layout, tensor.shape))
        found = 0 if tensor is None else _content(tensor)
        if isinstance(found, int):
            known[number] = splitmix64(found + offset)
        else:
            (together if _device.readable(found) else others).append((number, signed(offset), found))
    return known, [*_in_one_launch(together), *_in_torch(others)]


def _in_one_launch(pending: Sequence[tuple[int, int, Tensor]]) -> Iterator[Hashes]:
    """For each device, and for tensors with and without whole vectors."""
    batches: dict[tuple[torch.device, bool], list[tuple[int, int, Tensor]]] = {}
    for each in pending:
        batches.setdefault((each[2].device, _device.is_aligned(each[2])), []).append(each)
    for (device, _), batch in batches.items():
        numbers, offsets, flats = zip(*batch, strict=True)
        row_R = _row_factors(max(map(_rows_of, flats)), device)
        yield numbers, _device.hashes(flats, offsets, _odd(_COLUMN_SEED, COLUMNS, device), row_R)


def _in_torch(pending: list[tuple[int, int, Tensor]]) -> Iterator[Hashes]:
    if pending:
        pending.sort(key=lambda each: _rows_of(each[2]) > 1)  # those that can be summed together first
        numbers, offsets, flats = zip(*pending, strict=True)
        device = flats[0].device
        sums = [_sums(batch).to(device, non_blocking=True) for batch in _batches(flats)]
        yield numbers, mixed(torch.cat(sums) + _moved(offsets, device))


def _content(tensor: Tensor) -> int | Tensor:
    """The sum in the definition, without the number for type and shape. On other devices, the values to be summed."""
    if tensor.layout is not torch.strided:
        return _content(torch.as_tensor(fingerprint(parts_of(tensor)), device=tensor.device))
    dense = dense_of(tensor)
    if dense.numel() == 0:
        return 0
    if not _at_hand(dense):
        return flat_of(dense)
    if native.FINGERPRINT is not None and type(dense) is Tensor:
        return _weighted_in_c(dense, native.FINGERPRINT)
    return int(_weighted(flat_of(dense)))


def _at_hand(tensor: Tensor) -> bool:
    return tensor.is_cpu


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


def _batches(flats: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one row in lists of at most 4 MB, all others alone."""
    batch: list[Tensor] = []
    size = 0
    for flat_N in flats:
        more = flat_N.nbytes if _rows_of(flat_N) == 1 else _BYTES_TOGETHER
        if batch and (size + more > _BYTES_TOGETHER or flat_N.device != batch[0].device):
            yield batch
            batch, size = [], 0
        batch.append(flat_N)
        size += more
    yield batch


def _sums(batch: list[Tensor]) -> Tensor:
    """Of each tensor of a batch, in a dozen launches for all of them: integers allow to take apart a running sum."""
    if len(batch) == 1:
        return _weighted(batch[0])[None]
    words = [_words(flat_N) for flat_N in batch]
    ends = list(accumulate(len(word_J) for word_J in words))
    column_J = _odd(_COLUMN_SEED, COLUMNS, batch[0].device)
    running = (torch.cat(words) * torch.cat([column_J[: len(word_J)] for word_J in words])).cumsum(0)
    sums = running[_moved([end - 1 for end in ends], running.device)]
    sums[1:] -= sums[:-1].clone()
    return sums


def _moved(numbers: Sequence[int], device: torch.device) -> Tensor:
    """On the device, without waiting for it: only a copy out of pinned memory can be left to itself."""
    here = torch.tensor(numbers, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
    return here.to(device, non_blocking=True)


def prepare(device: torch.device, largest_bytes: int) -> None:
    """Makes the tables for tensors of up to this size: on a GPU that waits for the device, so it is done beforehand."""
    _odd(_COLUMN_SEED, COLUMNS, device)
    rows = -(-largest_bytes // (_WORD_BYTES * COLUMNS))
    for power in range(rows.bit_length() + 1):
        _row_factors(1 << power, device)
    if available(device):
        _compile(device)


@lru_cache(maxsize=16)
def _compile(device: torch.device) -> None:
    """Kernels for tensors with and without whole vectors."""
    try:
        for words in (4, 1):
            fingerprint([torch.zeros(words, dtype=torch.int32, device=device)])
    except Exception:
        give_up(device)


def _row_factors(count: int, device: torch.device) -> Tensor:
    """At least `count` of them: as many as the next power of two, so that few lengths are kept."""
    return _odd(_ROW_SEED, max(1024, 1 << (count - 1).bit_length()), device)


@lru_cache(maxsize=64)
def _odd(seed: int, count: int, device: torch.device) -> Tensor:
    """A one, then the odd factors that splitmix64 gives from this seed on."""
    found = mixed(torch.arange(count, device=device) * signed(GOLDEN) + seed) | 1
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
