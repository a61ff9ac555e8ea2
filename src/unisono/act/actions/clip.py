"""Makes the averaged gradient shorter: all gradients are multiplied by one factor, the same on every worker."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


@torch.no_grad()
def clip(parameters: Iterable[Tensor], factor: float) -> None:
    if not (math.isfinite(factor) and factor >= 0):
        raise ValueError(f"`factor` should be a finite number of 0 or more. Found `factor = {factor}`.")
    together: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for gradient in _gradients(parameters):
        if type(gradient) is Tensor and gradient.layout is torch.strided:
            together[gradient.device, gradient.dtype].append(gradient)
        else:
            gradient.mul_(factor)
    for gradients in together.values():
        torch._foreach_mul_(gradients, factor)


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Each once: a parameter may be named twice."""
    found = [parameter.grad for parameter in parameters]
    return list({id(gradient): gradient for gradient in found if gradient is not None}.values())
