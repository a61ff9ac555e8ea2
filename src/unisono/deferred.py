"""Numbers that may still be on a device: read at once where that is free, later where it would make the host wait."""

from __future__ import annotations

import torch
from torch import Tensor


def plain(number: Tensor) -> float | Tensor:
    return number.detach().item() if number.device.type == "cpu" else number.detach().clone()


def sum_of(gradient: Tensor) -> float | Tensor:
    """Finite only if every element is."""
    values = gradient._values() if gradient.is_sparse else gradient
    return plain((torch.view_as_real(values) if values.is_complex() else values).float().sum())
