"""A running sum on a GPU: gradients are joined to one vector.

Launching work for hundreds of small tensors takes a GPU's host longer than the work itself.

N = numbers of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unisono.microbatching.gradients import Gradients


class FlatSum:
    def __init__(self) -> None:
        self._forms: Gradients = []
        """Shape and layout of the gradient of each parameter that has had one; zeros where it is missing."""

        self._sum_N: Tensor | None = None

    @torch.no_grad()
    def products(self, gradients: Gradients) -> tuple[list[list[float]], Tensor]:
        """Of the gradients and the sum, with themselves and each other; and the gradients as they can be added."""
        newest_N = self._joined(gradients)
        gradients.clear()
        if self._sum_N is None:
            return [[float(torch.dot(newest_N, newest_N))]], newest_N
        other = torch.dot(newest_N, self._sum_N)
        both = torch.stack([torch.dot(newest_N, newest_N), other, other, torch.dot(self._sum_N, self._sum_N)])
        return both.view(2, 2).tolist(), newest_N

    @torch.no_grad()
    def add(self, newest_N: Tensor, factor: float) -> None:
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
        for parameter, part in zip(parameters, self._parts(), strict=True):
            parameter.grad = None if part is None else part.to(parameter.dtype)

    def _joined(self, gradients: Gradients) -> Tensor:
        """One vector; a gradient that comes for the first time also gets its place in the sum."""
        forms = self._forms or [None] * len(gradients)
        if any(form is None and part is not None for form, part in zip(forms, gradients, strict=True)):
            parts = self._parts()
            self._forms = [
                torch.empty_like(part, device="meta") if form is None and part is not None else form
                for form, part in zip(forms, gradients, strict=True)
            ]
            self._sum_N = None if self._sum_N is None else self._vector(parts)
        return self._vector(gradients)

    def _vector(self, gradients: Gradients) -> Tensor:
        device = next(part.device for part in gradients if part is not None)
        present = [
            torch.zeros(form.shape, dtype=form.dtype, device=device) if part is None else part
            for form, part in zip(self._forms, gradients, strict=True)
            if form is not None
        ]
        kinds = {part.dtype for part in present}
        if kinds & {torch.bfloat16, torch.float16} or len(kinds) > 1:
            exact = torch.float64 if torch.float64 in kinds else torch.float32
            present = [part.to(exact) for part in present]
        vector_N: Tensor = torch._utils._flatten_dense_tensors(present)
        return vector_N

    def _parts(self) -> Gradients:
        """The sum, cut up again, each part laid out in memory as its gradient was."""
        if self._sum_N is None:
            return [None] * len(self._forms)
        cut = iter(self._sum_N.split([form.numel() for form in self._forms if form is not None]))
        return [None if form is None else _laid_out(next(cut), form) for form in self._forms]


def _laid_out(part_N: Tensor, form: Tensor) -> Tensor:
    part = part_N.view(form.shape)
    if form.is_contiguous():
        return part
    return torch.empty_strided(form.shape, form.stride(), dtype=part.dtype, device=part.device).copy_(part)


def fits(gradients: Gradients) -> bool:
    """Real numbers on one device that is not the host."""
    present = [gradient for gradient in gradients if gradient is not None]
    return (
        len({gradient.device for gradient in present}) == 1
        and present[0].device.type != "cpu"
        and not any(gradient.is_complex() for gradient in present)
    )
