"""Gradients of a whole model: taken from its parameters, compared, summed up and handed back.

W = micro-batches, P = numbers of one piece. A gradient that is missing counts as zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Gradients: TypeAlias = list[Tensor | None]
"""One for each parameter, in their order."""

Prepared: TypeAlias = list[Any]
"""Gradients as the running sum that has prepared them compares and adds them."""

CACHED = 1 << 16
"""Numbers of a piece on CPU: all pairs of its rows are multiplied while they are in the cache."""

STACKED = 1 << 22
"""Numbers of a piece elsewhere, which bounds the memory that comparing takes."""

WHOLE = 1 << 28
FEW = 12
"""Up to so many rows, a GPU is faster with products of pairs than with copies of all rows for products of matrices."""

COLUMNS = 512
"""Products of so many columns are one of a batch of small matrices: a single one with long rows leaves a GPU idle."""


def take(parameters: Sequence[nn.Parameter]) -> Gradients:
    """The tensors themselves, no copies; the parameters are left without."""
    taken = [parameter.grad for parameter in parameters]
    drop(parameters)
    # Calls for hundreds of tensors add up; only those of a graph of gradients need this one.
    return [gradient.detach() if gradient is not None and gradient.requires_grad else gradient for gradient in taken]


def drop(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


@torch.no_grad()
def gram(row_W: Sequence[Gradients]) -> Tensor:
    """Inner products of all pairs, in float64; where the gradients are on a GPU, so is this, without waiting for it."""
    on_device: dict[torch.device, list[list[Tensor]]] = {}
    for flat_W in _side_by_side(row_W):
        on_device.setdefault(flat_W[0].device, []).append(flat_W)
    product_WW = [_products(flats, len(row_W), device) for device, flats in on_device.items()]
    return torch.stack([part_WW.to(product_WW[0].device) for part_WW in product_WW]).sum(0)


def _products(flats: list[list[Tensor]], workers: int, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return _by_pairs(_pieces(flats, CACHED))
    return _by_pairs(_pieces(flats, WHOLE)) if workers <= FEW else _by_matrices(_pieces(flats, STACKED // workers))


def _side_by_side(row_W: Sequence[Gradients]) -> Iterator[list[Tensor]]:
    """For each parameter that has a gradient at all: all gradients as vectors."""
    for gradient_W in zip(*row_W, strict=True):
        present = next((gradient for gradient in gradient_W if gradient is not None), None)
        if present is not None:
            filled_W = [torch.zeros_like(present) if gradient is None else gradient for gradient in gradient_W]
            if not present.is_contiguous():
                # In the order of memory, which for channels-last weights is not that of their dimensions.
                order = sorted(range(present.dim()), key=present.stride, reverse=True)
                filled_W = [gradient.permute(order) for gradient in filled_W]
            yield [_real(gradient).reshape(-1) for gradient in filled_W]


def _real(gradient: Tensor) -> Tensor:
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient


def _pieces(flats: Iterable[list[Tensor]], limit: int) -> Iterator[Sequence[Tensor]]:
    """Rows of at most so many numbers: long gradients are cut, short ones joined."""
    waiting: list[list[Tensor]] = []
    numbers = 0
    for flat_W in flats:
        if len(flat_W[0]) > limit:
            yield from zip(*(flat.split(limit) for flat in flat_W), strict=True)
            continue
        if numbers + len(flat_W[0]) > limit:
            yield _joined(waiting)
            waiting, numbers = [], 0
        waiting.append(flat_W)
        numbers += len(flat_W[0])
    if waiting:
        yield _joined(waiting)


def _joined(flats: list[list[Tensor]]) -> list[Tensor]:
    return flats[0] if len(flats) == 1 else [torch.cat(parts) for parts in zip(*flats, strict=True)]


def _by_pairs(pieces: Iterable[Sequence[Tensor]]) -> Tensor:
    product_WW: list[Tensor] = []
    for piece_W in pieces:
        exact = torch.float64 if any(piece_P.dtype == torch.float64 for piece_P in piece_W) else torch.float32
        wide_W = [piece_P.to(exact) for piece_P in piece_W]
        lower = [[torch.dot(one_P, wide_W[other]) for other in range(row + 1)] for row, one_P in enumerate(wide_W)]
        workers = range(len(lower))
        product_WW += [lower[max(row, column)][min(row, column)] for row in workers for column in workers]
    return torch.stack(product_WW).view(-1, len(workers), len(workers)).sum(0, dtype=torch.float64)


def _by_matrices(pieces: Iterable[Sequence[Tensor]]) -> Tensor:
    product_WW = []
    for piece_W in pieces:
        # In float64, which TF32 leaves alone: a user who allows it for training does not mean it for decisions.
        stack_WP = nn.functional.pad(torch.stack(tuple(piece_W)).to(torch.float64), (0, -len(piece_W[0]) % COLUMNS))
        batch = stack_WP.view(len(piece_W), -1, COLUMNS).transpose(0, 1)
        product_WW.append(torch.bmm(batch, batch.transpose(1, 2)).sum(0))
    return torch.stack(product_WW).sum(0)


class RunningSum:
    """Of gradients times factors, in float32 or better. It keeps the first tensors it is given and adds to them."""

    def __init__(self) -> None:
        self.total: Gradients = []

    def prepared(self, gradients: Gradients) -> Prepared:
        """As they can be compared and added: as they are."""
        return gradients

    def products(self, prepared: Prepared) -> list[list[float]]:
        """Of prepared gradients and the sum, with themselves and each other."""
        found: list[list[float]] = gram([prepared, self.total] if self.total else [prepared]).tolist()
        return found

    @torch.no_grad()
    def add(self, prepared: Prepared, factor: float) -> None:
        self.total = self.total or [None] * len(prepared)
        targets: list[Tensor] = []
        added: list[Tensor] = []
        for place, (target, gradient) in enumerate(zip(self.total, prepared, strict=True)):
            if target is not None and gradient is not None:
                targets.append(target)
                added.append(gradient)
            elif gradient is not None:
                wide = _wide(gradient)
                self.total[place] = wide if factor == 1 else wide.mul_(factor)
        if targets:
            torch._foreach_add_(targets, added, alpha=factor)

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        present = [target for target in self.total if target is not None]
        if factor != 1 and present:
            torch._foreach_mul_(present, factor)

    @torch.no_grad()
    def hand_to(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter, target in zip(parameters, self.total, strict=True):
            parameter.grad = None if target is None else target.to(parameter.dtype)


def _wide(gradient: Tensor) -> Tensor:
    return gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient
