"""Launches of the kernels in `kernels.py`. Nothing here makes the host wait for the device.

Suffixes give shapes: P = gradients of a launch, N = rows, R = runs, J = tiles, G = layer groups, K = sketch length.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from unisono.sketch.gpu.layout import LaunchLayout
from unisono.sketch.hashing import LANES, sign_words, slice_rotations
from unisono.sketch.native import switched_off

LARGEST_TILE, WARPS, ROWS_AT_ONCE = 2048, 4, 4
ADDRESSED_AT_ONCE, SUMMED_AT_ONCE = 1024, 32
VECTOR = 16
"""Bytes that are loaded at once, and numbers of a group, which is loaded whole or not at all."""

NUMBERS = (torch.float32, torch.bfloat16, torch.float16)


KINDS = set() if switched_off() or importlib.util.find_spec("triton") is None else {"cuda"}
"""Of devices for which there is Triton."""

_out_of_order: set[torch.device] = set()


def available(device: torch.device) -> bool:
    """Whether the kernels can read what lies on this device."""
    return device.type in KINDS and device not in _out_of_order


def give_up(device: torch.device) -> None:
    """The kernels do not run there, for want of a compiler or of a GPU that Triton knows: torch does the work."""
    _out_of_order.add(device)


def readable(tensor: Tensor, device: torch.device) -> bool:
    """Whether the kernels can read it. Those of a subclass they cannot: their memory may lie elsewhere."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.dtype in NUMBERS
        and tensor.device == device
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % VECTOR == 0 and tensor.numel() % VECTOR == 0


def to_device(numbers: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Only a copy out of pinned memory can be left to itself."""
    here = torch.tensor(numbers, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")
    return here.to(device, non_blocking=True)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the one of the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def stream_on(device: torch.device) -> int:
    """A number for the current stream: memory that is written again and again must not be shared between streams."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def tile_of(length: int) -> int:
    return min(LARGEST_TILE, length)


def tiles_of(length: int) -> int:
    return length // tile_of(length)


def region_of(slots: int, length: int) -> int:
    """Numbers in the memory for so many slots."""
    return slots * tiles_of(length) * (tile_of(length) + LANES)


class KernelChoices:
    """What a seed decides, as the kernels need it."""

    def __init__(self, seed: int, length: int, device: torch.device) -> None:
        self.seed = seed
        self.rotation_16 = to_device(slice_rotations(seed).tolist(), torch.int32, device)
        self.sign_words = sign_words(seed, length, device).to(torch.int32)


class Launch:
    """Reads the same gradients again and again: their layout stays, and often their addresses do."""

    def __init__(
        self, layout: LaunchLayout, elements: Sequence[int], keys: Sequence[int], length: int, device: torch.device
    ) -> None:
        self._length, self._device = length, device
        self._elements_P = to_device(elements, torch.int64, device)
        self._key_P = to_device([signed(key) for key in keys], torch.int32, device)
        self._run_R3 = to_device(layout.run_R3, torch.int32, device)
        self._stretch_S4 = to_device(layout.stretch_S4, torch.int32, device)
        self._unit_U2 = to_device(layout.unit_U2, torch.int32, device)
        # The last rows are read together with up to three that are none.
        rows = layout.row_N2 + [(0, 0)] * (ROWS_AT_ONCE - 1)
        self._row_N2 = to_device(rows, torch.int32, device)
        self._record_N2 = torch.empty(len(rows), 2, dtype=torch.int64, device=device)
        self._recorded: object = None

    def read(
        self, gradients: Sequence[Tensor], choices: KernelChoices, region: Tensor | None, square_RJ: Tensor
    ) -> None:
        """Adds sketches to `region`, unless there is none, and writes squared norms of runs.

        :param gradients: of one type, all aligned or none.
        """
        with on(self._device):
            self._record([gradient.data_ptr() for gradient in gradients], gradients[0].element_size(), choices.seed)
            self._fold(gradients, choices, region, square_RJ)

    def _fold(
        self, gradients: Sequence[Tensor], choices: KernelChoices, region: Tensor | None, square_RJ: Tensor
    ) -> None:
        from unisono.sketch.gpu import kernels

        kernels.fold[tiles_of(self._length), len(self._unit_U2)](
            self._record_N2,
            self._run_R3,
            self._stretch_S4,
            self._unit_U2,
            choices.rotation_16,
            choices.sign_words,
            square_RJ if region is None else region,
            square_RJ,
            LENGTH=self._length,
            TILE=tile_of(self._length),
            NUMBER=kernels.NUMBERS[gradients[0].dtype],
            ALIGNED=is_aligned(gradients[0]),
            SKETCH=region is not None,
            num_warps=WARPS,
        )

    def _record(self, addresses: list[int], bytes_each: int, seed: int) -> None:
        from unisono.sketch.gpu import kernels

        recorded = addresses, bytes_each, seed
        if recorded == self._recorded:
            return
        self._recorded = recorded
        rows = len(self._record_N2)
        kernels.address_rows[-(-rows // ADDRESSED_AT_ONCE),](
            to_device(addresses, torch.int64, self._device),
            self._elements_P,
            self._key_P,
            self._row_N2,
            self._record_N2,
            rows,
            signed(seed),
            LENGTH=self._length,
            BYTES=bytes_each,
            BLOCK=ADDRESSED_AT_ONCE,
        )


def gather_sketch(region: Tensor, first_slot_G: Tensor, sketch_GK: Tensor) -> None:
    from unisono.sketch.gpu import kernels

    groups, length = sketch_GK.shape
    tile = tile_of(length)
    with on(region.device):
        kernels.gather_sketch[length // tile, groups](
            region, first_slot_G, sketch_GK, LENGTH=length, TILE=tile, num_warps=WARPS
        )


def gather_squares(square_RJ: Tensor, first_run_P: Tensor, square_P: Tensor) -> None:
    from unisono.sketch.gpu import kernels

    tiles = square_RJ.shape[1]
    with on(square_RJ.device):
        kernels.gather_squares[len(square_P),](square_RJ, first_run_P, square_P, TILES=tiles, AT_ONCE=SUMMED_AT_ONCE)


def signed(word: int) -> int:
    """Always 32 bits: a kernel would be compiled anew for a number of another type."""
    return word - (1 << 32) if word >> 31 else word
