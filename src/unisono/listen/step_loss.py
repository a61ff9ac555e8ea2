"""The local loss of a step, found on the way into `backward`.

A step follows the gradient of the sum of everything `backward` was called on, so that sum is its loss: with
`(loss / 4).backward()` four times it is the mean, without accumulation it is what the user calls the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

UNKNOWN = (
    "loss statistics are off: {why}, so the local loss is not known. Hand it over with `monitor.record_loss(loss)`"
)
MOST_SCALED = 8
DEPTH = 4
"""How many operations may lie between a scaled loss and what `backward` is called on, as in `scaled / 4`."""


class StepLoss:
    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._said = False
        self._proposed: float | Tensor | None = None
        self._why_unknown: str | None = None
        self.scale: float | Tensor | None = None
        """What the proposed loss, and so its gradients, was multiplied by."""

        self.reset()

    def reset(self) -> None:
        self._sum: float | Tensor | None = None
        self._recorded: list[float | Tensor] = []
        self._scaled: list[tuple[Any, float | Tensor, Tensor]] = []
        self._unknown = False

    def forget_passes(self) -> None:
        """Their gradients were dropped; what was scaled or recorded since belongs to the next one."""
        self._sum, self._unknown = None, False

    def record(self, loss: Any) -> None:
        """The user's own word; several calls in a step are averaged."""
        self._recorded.append(_number(loss.mean() if isinstance(loss, Tensor) else float(loss)))

    def scaled_by(self, scaled: Any, scale: float | Tensor, losses: Any) -> None:
        """A loss scaler has made `scaled`. It is known by its node: other losses may come before its backward."""
        pairs = zip(_tensors(scaled), _tensors(losses), strict=False)
        news = [(tensor.grad_fn, scale, loss.detach()) for tensor, loss in pairs if tensor.grad_fn]
        self._scaled = [*self._scaled, *news][-MOST_SCALED:]

    def propose(self, roots: Any, grad_tensors: Any) -> None:
        """`backward` begins on `roots`; whether it reaches our model is known only afterwards."""
        root = roots if isinstance(roots, Tensor) else (roots[0] if len(roots) == 1 else None)
        factor = grad_tensors if isinstance(grad_tensors, Tensor) or not grad_tensors else grad_tensors[0]
        self.scale = None if root is None else self._scale_of(root)
        self._why_unknown = _why_unknown(root, factor, self.scale)
        self._proposed = None
        if self._why_unknown is None and root is not None:
            value = self._unscaled(root)
            self._proposed = _number(value if factor is None else value * factor)

    def accept(self) -> None:
        """The backward pass was ours."""
        if self._proposed is None:
            self._unknown = True
        else:
            self._sum = self._proposed if self._sum is None else self._sum + self._proposed

    def value(self) -> float | Tensor | None:
        if self._recorded:
            return sum(self._recorded[1:], start=self._recorded[0]) / len(self._recorded)
        if self._unknown and not self._said:
            self._said = True
            self._complain(UNKNOWN.format(why=self._why_unknown))
        return None if self._unknown else self._sum

    def _unscaled(self, root: Tensor) -> Tensor:
        """The loss itself where it is at hand: its multiple may be too large for its type, its gradient not."""
        for scaled, _, loss in self._scaled:
            if root.grad_fn is scaled:
                return loss
        return root.detach() if self.scale is None else root.detach() / self.scale

    def _scale_of(self, root: Tensor) -> float | Tensor | None:
        node: Any = root.grad_fn
        for _ in range(DEPTH):
            for scaled, scale, _loss in self._scaled:
                if node is scaled:
                    return scale
            node = node.next_functions[0][0] if node is not None and node.next_functions else None
        return None


def _tensors(scaled: Any) -> list[Tensor]:
    several = scaled if isinstance(scaled, list | tuple) else [scaled]
    return [tensor for tensor in several if isinstance(tensor, Tensor)]


def _why_unknown(root: Tensor | None, factor: Tensor | None, scale: float | Tensor | None) -> str | None:
    if root is None:
        return "`backward` was called on several tensors"
    if root.numel() != 1 or root.is_complex() or (factor is not None and factor.numel() != 1):
        return "`backward` was called on a tensor that is not a scalar"
    if scale is None and _multiplied_by_tensor(root):
        return "the loss is multiplied by a tensor of an unknown scaler"
    return None


def _multiplied_by_tensor(root: Tensor) -> bool:
    """A loss scaler that is not torch's multiplies by a 0-dim tensor; a plain number is saved as float64 or int64."""
    node = root.grad_fn
    if node is None or node.name() != "MulBackward0":
        return False
    saved = [_saved_scalar(node, name) for name in ("_raw_saved_self", "_raw_saved_other")]
    return any(scalar.dtype in (torch.float16, torch.bfloat16, torch.float32) for scalar in saved if scalar is not None)


def _saved_scalar(node: Any, name: str) -> Tensor | None:
    """Never unpacks: under checkpointing that would run a part of the forward pass once more."""
    saved = getattr(node, name, None)
    if getattr(saved, "unpack_hook", True) is not None:
        return None
    data = getattr(saved, "data", None)
    return data if isinstance(data, Tensor) and data.dim() == 0 else None


def _number(value: float | Tensor) -> float | Tensor:
    if isinstance(value, Tensor):
        value = value.detach().reshape(())
        return value.item() if value.device.type == "cpu" else value.double()
    return value
