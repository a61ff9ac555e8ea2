"""Sketches as bytes, for the exchange between ranks.

Suffixes give shapes: K = sketch length; any dimensions may come before it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def quantise(sketch_K: Tensor) -> tuple[Tensor, Tensor]:
    """Round to int8 with one scale per vector. The scale of a non-finite vector is not finite."""
    scale = sketch_K.abs().amax(-1, keepdim=True) / 127
    steps_K = sketch_K / torch.where(scale > 0, scale, 1)
    return steps_K.nan_to_num(0, 127, -127).round().clamp(-127, 127).to(torch.int8), scale.squeeze(-1)


def dequantise(step_K: Tensor, scale: Tensor) -> Tensor:
    """The sketch that `quantise` rounded; a non-finite vector comes back as nan throughout."""
    return step_K * torch.where(scale.isfinite(), scale, torch.nan)[..., None]
