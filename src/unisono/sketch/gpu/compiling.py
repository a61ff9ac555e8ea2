"""Has Triton compile what a model will need, before its first step: that can take seconds."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from unisono.sketch.gpu.device_fold import DeviceFold
from unisono.sketch.gpu.launching import NUMBERS, VECTOR, available, give_up
from unisono.sketch.gpu.total_norm import total_square


def compile_kernels(dtypes: Iterable[torch.dtype], length: int, device: torch.device) -> str:
    """Why they will not be used, if they could be and do not run; then torch does the work."""
    if not available(device):
        return ""
    try:
        _read_some(dtypes, length, device)
    except Exception as error:
        give_up(device)
        return f"{type(error).__name__}: {error}"
    return ""


def _read_some(dtypes: Iterable[torch.dtype], length: int, device: torch.device) -> None:
    """A few numbers of each type, with and without whole vectors."""
    for dtype in sorted(set(dtypes).intersection(NUMBERS), key=str):
        for elements in (VECTOR, 1):
            numbers = torch.zeros(elements, dtype=dtype, device=device)
            fold = DeviceFold(["weight"], [elements], [0], length, device)
            fold.read([(0, numbers)])
            fold.end()
            total_square([numbers], device)
