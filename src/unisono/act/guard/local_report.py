"""What this worker knows of its own pass: loss, whether all is finite, and its share of the averaged gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unisono.exchange.guard_messages import FINITE, LENGTH, LOSS, LOSS_KNOWN, SQUARE, RankReport
from unisono.listen.device_scalars import plain, sum_of
from unisono.listen.grad_hooks import GradientHooks
from unisono.listen.gradient_reader import even_share
from unisono.listen.step_loss import StepLoss
from unisono.sketch import measure_norm

QUICK = (torch.float16, torch.bfloat16, torch.float32)


class LocalReport:
    def __init__(self, parameters: Sequence[Any], rank: int, world: int) -> None:
        self._loss = StepLoss(_silence)
        self._hooks = GradientHooks(list(parameters), self._arrived, self._arrived)
        # Everywhere: with parts of a model unused, no few parameters are reached on all workers.
        self._hooks.listen_to_all()
        self._share = [parameters[index] for index in even_share([one.numel() for one in parameters], rank, world)]
        self.counts = True
        """Whether this worker's own loss and gradients have a part in the average; steering may leave them out."""

        self._said: float | Tensor | None = None
        self._finite_sum: float | Tensor | None = None
        self._scale: float | Tensor | None = None

    def record_loss(self, loss: Any) -> None:
        """Used where the loss is not known otherwise: it may be told of a step that is over."""
        self._said = loss.detach().double().mean() if isinstance(loss, Tensor) else float(loss)

    def loss_scaled(self, scaled: Any, scaler: Any, losses: Any) -> None:
        current = getattr(scaler, "_get_scale_async", scaler.get_scale)()
        self._loss.scaled_by(scaled, plain(current) if isinstance(current, Tensor) else current, losses)

    def step_over(self) -> None:
        self._loss.reset()
        self._finite_sum = self._scale = None

    def gradients_dropped(self) -> None:
        self._loss.forget_passes()
        self._finite_sum = self._scale = None

    def pass_begins(self, roots: Any, grad_tensors: Any) -> None:
        self._hooks.fired.clear()
        self._loss.propose(roots, grad_tensors)

    def _arrived(self, index: int, parameter: Tensor) -> None:
        self._hooks.count(index)
        if index == self._hooks.finite_check and parameter.grad is not None:
            self._finite_sum = sum_of(parameter.grad)

    def pass_was_ours(self) -> bool:
        if not self._hooks.fired:
            return False
        self._hooks.as_usual()
        self._hooks.listen_to_all()
        self._loss.accept()
        if self._loss.scale is not None:
            self._scale = self._loss.scale
        return True

    def report(self, blank: RankReport) -> RankReport:
        """:param blank: What else this worker has to say."""
        loss, finite_sum, square, scale = _read([self._own_loss(), self._own_finite_sum(), self._square(), self._scale])
        known = [value for value in (loss, finite_sum) if value is not None]
        return replace(
            blank,
            loss=loss,
            finite=all(map(math.isfinite, known)) if known else None,
            share_square=None if square is None else square / (scale or 1.0) ** 2,
            scaled=self._scale is not None,
        )

    def fill_in(self, blank: RankReport, numbers_N: Tensor, device: torch.device) -> Tensor:
        """The same as numbers on the device, without waiting for them."""
        loss, finite_sum, square, scale = self._own_loss(), self._own_finite_sum(), self._square(), self._scale
        numbers_N[:LENGTH] = torch.tensor(replace(blank, scaled=scale is not None).numbers(), dtype=torch.float64)
        sent_N = _sent(numbers_N, device)
        finite = [torch.as_tensor(one).isfinite() for one in (loss, finite_sum) if one is not None]
        if loss is not None:
            sent_N[LOSS_KNOWN].fill_(1.0)
            sent_N[LOSS].copy_(_on(loss, device))
        if finite:
            sent_N[FINITE].copy_(torch.stack([one.to(device, non_blocking=True) for one in finite]).all())
        sent_N[SQUARE].copy_(_on(square, device) / (1.0 if scale is None else _on(scale, device).square()))
        return sent_N

    def _own_loss(self) -> float | Tensor | None:
        found = self._loss.value()
        return (self._said if found is None else found) if self.counts else None

    def _own_finite_sum(self) -> float | Tensor | None:
        return self._finite_sum if self.counts else None

    def _square(self) -> float | Tensor:
        gradients = [parameter.grad for parameter in self._share if parameter.grad is not None]
        quick = [one for one in gradients if _is_quick(one)]
        squares = [measure_norm(one) for one in gradients if not _is_quick(one)]
        moved = [square for square in squares if isinstance(square, Tensor)]
        if quick:
            norms = torch._foreach_norm(quick, 2.0, torch.float32)
            moved.append(torch.stack([norm.to(quick[0].device) for norm in norms]).double().square().sum())
        rest = sum(square for square in squares if isinstance(square, float))
        return torch.stack([square.to(moved[0].device) for square in moved]).sum() + rest if moved else rest

    def close(self) -> None:
        self._hooks.remove()
        self._share = []


def _read(numbers: Sequence[float | Tensor | None]) -> list[float | None]:
    """In one copy: where they lie on a GPU this waits for it, once a step."""
    moved = [number.double().reshape(()) for number in numbers if isinstance(number, Tensor)]
    values = iter(torch.stack([number.to(moved[0].device) for number in moved]).tolist() if moved else [])
    return [next(values) if isinstance(number, Tensor) else number for number in numbers]


def _is_quick(gradient: Tensor) -> bool:
    """Many of these are measured in one launch."""
    return gradient.is_cuda and not gradient.is_sparse and gradient.dtype in QUICK


def _on(number: float | Tensor, device: torch.device) -> Tensor:
    if isinstance(number, Tensor):
        return number.double().to(device, non_blocking=True)
    return torch.full((), number, dtype=torch.float64, device=device)


def _sent(numbers_N: Tensor, device: torch.device) -> Tensor:
    return numbers_N.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers_N


def _silence(text: str) -> None:
    """`StepTracker`, which follows the same losses, says it."""
