"""A running sum on a GPU: gradients are joined to one vector.

Launching work for hundreds of small tensors takes a GPU's host longer than the work itself.

N = numbers of all parameters that are trained.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unisono.act.microbatching.gradients import WHOLE, Gradients, Prepared


class FlatSum:
    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._places = [place for place, parameter in enumerate(parameters) if parameter.requires_grad]
        self._trained = [parameters[place].detach() for place in self._places]
        kinds = {parameter.dtype for parameter in self._trained}
        self._exact = torch.float64 if torch.float64 in kinds else torch.float32
        self._alike = kinds == {self._exact}
        self._had = [False] * len(self._places)
        """Whose gradient has been there; where it is missing, zeros stand for it."""

        self._sum_N: Tensor | None = None

    @torch.no_grad()
    def prepared(self, gradients: Gradients) -> Prepared:
        """As one vector. Takes the gradients."""
        wanted = [gradients[place] for place in self._places]
        self._had = [had or gradient is not None for had, gradient in zip(self._had, wanted, strict=True)]
        filled = [
            torch.zeros_like(parameter) if gradient is None else gradient
            for gradient, parameter in zip(wanted, self._trained, strict=True)
        ]
        gradients.clear()
        alike = filled if self._alike else [gradient.to(self._exact) for gradient in filled]
        return [torch._utils._flatten_dense_tensors(alike)]

    @torch.no_grad()
    def products(self, prepared: Prepared) -> list[list[float]]:
        """Of prepared gradients and the sum, with themselves and each other."""
        newest_N, sum_N = prepared[0], self._sum_N
        square = _dot(newest_N, newest_N)
        if sum_N is None:
            return [[float(square)]]
        other = _dot(newest_N, sum_N)
        both_22 = torch.stack([square, other, other, _dot(sum_N, sum_N)]).view(2, 2)
        return both_22.tolist()

    @torch.no_grad()
    def add(self, prepared: Prepared, factor: float) -> None:
        newest_N = prepared[0]
        if self._sum_N is None:
            self._sum_N = newest_N if factor == 1 else newest_N.mul_(factor)
        else:
            self._sum_N.add_(newest_N, alpha=factor)

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        if self._sum_N is not None:
            self._sum_N.mul_(factor)

    @torch.no_grad()
    def hand_to(self, parameters: Sequence[nn.Parameter]) -> None:
        parts = torch._utils._unflatten_dense_tensors(self._sum_N, self._trained)
        for place, had, part in zip(self._places, self._had, parts, strict=True):
            parameters[place].grad = _laid_out(part, parameters[place]) if had else None


def _dot(one_N: Tensor, other_N: Tensor) -> Tensor:
    """Of any length: torch's own stops at 2^31 numbers."""
    pieces = zip(one_N.split(WHOLE), other_N.split(WHOLE), strict=True)
    return torch.stack([torch.dot(one, other) for one, other in pieces]).sum()


def _laid_out(part: Tensor, parameter: nn.Parameter) -> Tensor:
    """As the parameter is, in type and memory."""
    alike = part.dtype == parameter.dtype and parameter.is_contiguous()
    return part if alike else torch.empty_like(parameter).copy_(part)


def fits(gradients: Gradients) -> bool:
    """Real numbers on one device that is not the host."""
    present = [gradient for gradient in gradients if gradient is not None]
    return (
        len({gradient.device for gradient in present}) == 1
        and present[0].device.type != "cpu"
        and not any(gradient.is_complex() for gradient in present)
    )
