"""Hashes of many tensors on a GPU, two launches for all of them. Nobody waits for it.

Suffixes give shapes: Q = tensors, N = pieces, J = columns or tiles of them, R = rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from unisono.sketch.gpu.launching import available, on, stream_on, to_device

TILE, WARPS, ROWS_OF_A_PIECE, SUMMED_AT_ONCE = 2048, 4, 32, 32
_WORD_BYTES, _VECTOR_BYTES = 4, 16


def readable(flat_N: Tensor) -> bool:
    """Whether it consists of whole words, as the kernel reads them."""
    whole = flat_N.data_ptr() % _WORD_BYTES == 0 and flat_N.nbytes % _WORD_BYTES == 0
    return whole and type(flat_N) is Tensor and available(flat_N.device)


def is_aligned(flat_N: Tensor) -> bool:
    return (flat_N.data_ptr() | flat_N.nbytes) % _VECTOR_BYTES == 0


def hashes(flats: Sequence[Tensor], offsets: Sequence[int], column_J: Tensor, row_R: Tensor) -> Tensor:
    """Of each tensor, all of them readable, on one device, and all aligned or none.

    :param offsets: What is added to the sum of each before it is mixed.
    """
    words = tuple(flat.nbytes // _WORD_BYTES for flat in flats)
    device = flats[0].device
    weigher = _weigher(words, tuple(offsets), len(column_J), device, stream_on(device))
    with on(device):
        return weigher.weigh(flats, column_J, row_R)


class Weigher:
    """Reads tensors of the same sizes again and again, in one stream."""

    def __init__(self, words: Sequence[int], offsets: Sequence[int], columns: int, device: torch.device) -> None:
        rows = [-(-count // columns) for count in words]
        pieces = [
            (tensor, first, min(first + ROWS_OF_A_PIECE, count))
            for tensor, count in enumerate(rows)
            for first in range(0, count, ROWS_OF_A_PIECE)
        ]
        ends = accumulate(-(-count // ROWS_OF_A_PIECE) for count in rows)
        self._device = device
        self._word_Q = to_device(words, torch.int64, device)
        self._offset_Q = to_device(offsets, torch.int64, device)
        self._piece_N3 = to_device(pieces, torch.int32, device)
        self._first_piece_Q = to_device([0, *ends], torch.int32, device)
        self._sum_NJ = torch.empty(len(pieces), columns // TILE, dtype=torch.int64, device=device)
        self._addresses: list[int] = []
        self._address_Q = self._word_Q

    def weigh(self, flats: Sequence[Tensor], column_J: Tensor, row_R: Tensor) -> Tensor:
        from unisono.sketch.fingerprint import kernels

        addresses = [flat.data_ptr() for flat in flats]
        if addresses != self._addresses:
            self._addresses, self._address_Q = addresses, to_device(addresses, torch.int64, self._device)
        kernels.weigh[self._sum_NJ.shape](
            self._address_Q,
            self._word_Q,
            self._piece_N3,
            column_J,
            row_R,
            self._sum_NJ,
            COLUMNS=len(column_J),
            TILE=TILE,
            ALIGNED=is_aligned(flats[0]),
            num_warps=WARPS,
        )
        hash_Q = torch.empty(len(flats), dtype=torch.int64, device=self._device)
        kernels.seal[len(flats),](
            self._sum_NJ,
            self._first_piece_Q,
            self._offset_Q,
            hash_Q,
            TILES=self._sum_NJ.shape[1],
            AT_ONCE=SUMMED_AT_ONCE,
        )
        return hash_Q


@lru_cache(maxsize=256)
def _weigher(
    words: tuple[int, ...], offsets: tuple[int, ...], columns: int, device: torch.device, stream: int
) -> Weigher:
    return Weigher(words, offsets, columns, device)
