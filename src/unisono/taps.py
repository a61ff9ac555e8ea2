"""Where unisono listens in on torch: `backward`, `GradScaler` and gradient clipping.

The functions are replaced while somebody listens and put back afterwards. A tap passes arguments and results through
untouched; listeners swallow their own errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Listener(Protocol):
    def backward_begins(self, roots: Any, grad_tensors: Any) -> None: ...
    def backward_ended(self) -> None: ...
    def loss_scaled(self, scaler: Any) -> None: ...
    def scaler_stepped(self, optimizer: Optimizer) -> None: ...
    def clipped(self, parameters: list[Tensor], norm: Tensor) -> None: ...
    def optimizer_begins(self, optimizer: Optimizer) -> None: ...
    def optimizer_stepped(self, optimizer: Optimizer) -> None: ...


class _Switchboard:
    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.depth = 0
        self.undo: list[Callable[[], None]] = []


_board = _Switchboard()


def connect(listener: Listener) -> None:
    if not _board.listeners:
        _install()
    _board.listeners = (*_board.listeners, listener)


def disconnect(listener: Listener) -> None:
    _board.listeners = tuple(other for other in _board.listeners if other is not listener)
    if not _board.listeners:
        while _board.undo:
            _board.undo.pop()()


def _install() -> None:
    _replace(torch.autograd, "backward", _tap_backward)
    _replace(torch.amp.GradScaler, "scale", _tap_scale)
    _replace(torch.amp.GradScaler, "step", _tap_scaler_step)
    _replace(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", _tap_clip)
    # A compiled `optimizer.step` must not trace into the listeners.
    begins = register_optimizer_step_pre_hook(torch.compiler.disable(_optimizer_begins))
    stepped = register_optimizer_step_post_hook(torch.compiler.disable(_optimizer_stepped))
    _board.undo += [begins.remove, stepped.remove]


def _replace(owner: Any, name: str, tap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return
    tapped = functools.wraps(original)(tap(original))
    setattr(owner, name, tapped)

    def put_back() -> None:
        # Somebody may have wrapped our tap meanwhile; taking theirs away would change the user's program.
        if getattr(owner, name, None) is tapped:
            setattr(owner, name, original)

    _board.undo.append(put_back)


@contextmanager
def _outermost(roots: Any, grad_tensors: Any) -> Iterator[None]:
    """Reentrant checkpointing calls `backward` inside a backward pass: only the outermost counts."""
    outermost = _board.depth == 0
    listeners = _board.listeners if outermost else ()
    _board.depth += 1
    try:
        for listener in listeners:
            listener.backward_begins(roots, grad_tensors)
        yield
    finally:
        _board.depth -= 1
        for listener in listeners:
            listener.backward_ended()


def _tap_backward(original: Callable[..., None]) -> Callable[..., None]:
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        with _outermost(tensors, grad_tensors):
            original(tensors, grad_tensors, *args, **kwargs)

    return backward


def _tap_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if self.is_enabled():
            for listener in _board.listeners:
                listener.loss_scaled(self)
        return scaled

    return scale


def _tap_scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(self, optimizer, *args, **kwargs)
        for listener in _board.listeners:
            listener.scaler_stepped(optimizer)
        return result

    return step


def _tap_clip(original: Callable[..., None]) -> Callable[..., None]:
    def clip(
        parameters: Iterable[Tensor] | Tensor, max_norm: float, total_norm: Tensor, *args: Any, **kwargs: Any
    ) -> None:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for listener in _board.listeners:
            listener.clipped(parameters, total_norm)
        original(parameters, max_norm, total_norm, *args, **kwargs)

    return clip


def _optimizer_begins(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for listener in _board.listeners:
        listener.optimizer_begins(optimizer)


def _optimizer_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for listener in _board.listeners:
        listener.optimizer_stepped(optimizer)
