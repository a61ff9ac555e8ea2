"""The squared norm of many tensors together: on a GPU in one launch, and nobody waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from unisono.sketch.gpu.launching import KernelChoices, Launch, available, is_aligned, readable, stream_on, tiles_of
from unisono.sketch.gpu.layout import UNITS, RowRun, lay_out, runs_of
from unisono.sketch.length import LONGEST
from unisono.sketch.norm import measure_norm


def total_square(tensors: Sequence[Tensor], device: torch.device) -> float | Tensor:
    """A number if `device` is the CPU; elsewhere, in float64 and still there."""
    together: dict[tuple[torch.dtype, bool], list[Tensor]] = {}
    squares: list[float | Tensor] = []
    for tensor in tensors:
        if available(device) and readable(tensor, device):
            together.setdefault((tensor.dtype, is_aligned(tensor)), []).append(tensor)
        else:
            squares.append(measure_norm(tensor))
    squares += [_read(batch, device) for batch in together.values()]
    if device.type == "cpu":
        return float(sum(squares))
    known = sum(square for square in squares if isinstance(square, float))
    moved = [square.to(device) for square in squares if isinstance(square, Tensor)]
    return torch.stack(moved).sum() + known if moved else known


def _read(batch: Sequence[Tensor], device: torch.device) -> Tensor:
    launch, square_RJ = _prepared(tuple(tensor.numel() for tensor in batch), device, stream_on(device))
    launch.read(batch, _choices(device, stream_on(device)), None, square_RJ)
    return square_RJ.sum(dtype=torch.float64)


@lru_cache(maxsize=128)
def _prepared(elements: tuple[int, ...], device: torch.device, stream: int) -> tuple[Launch, Tensor]:
    runs: list[RowRun] = []
    for index, count in enumerate(elements):
        runs += runs_of(index, count, 0, 0, LONGEST, len(runs))
    layout = lay_out(runs, [UNITS], {index: index for index in range(len(elements))})
    launch = Launch(layout, elements, [0] * len(elements), LONGEST, device)
    return launch, torch.empty(len(runs), tiles_of(LONGEST), device=device)


@lru_cache(maxsize=8)
def _choices(device: torch.device, stream: int) -> KernelChoices:
    return KernelChoices(0, LONGEST, device)
