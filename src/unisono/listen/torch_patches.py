"""Where unisono listens in on torch: `backward`, `zero_grad`, `GradScaler`, gradient clipping and optimizer steps.

The functions are replaced while somebody listens and put back afterwards. A tap passes arguments and results through
untouched; listeners swallow their own errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from unisono.listen import dataloader_patches as loader_taps


class Listener:
    """Hears of everything; listens to what it overrides."""

    def backward_begins(self, roots: Any, grad_tensors: Any) -> None: ...
    def backward_ended(self, failed: bool) -> None: ...
    def gradients_zeroed(self, parameters: list[Tensor]) -> None: ...
    def loss_scaled(self, scaled: Any, scaler: Any, losses: Any) -> None: ...
    def scaler_stepped(self, parameters: list[Tensor], optimizer: Any) -> None: ...
    def clipped(self, parameters: list[Tensor], norm: Tensor) -> None: ...
    def optimizer_begins(self, parameters: list[Tensor], optimizer: Any) -> None: ...
    def optimizer_stepped(self, parameters: list[Tensor], optimizer: Any) -> None: ...
    def forward_begins(self, model: Any, inputs: Any) -> None: ...
    def forward_ended(self, model: Any) -> None: ...
    def loading_begins(self, iterator: Any) -> None: ...
    def loaded(self, iterator: Any, data: Any, indices: list[int] | None) -> None: ...


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
    # A compiled training step must not trace into the listeners.
    tell, tell_of = torch.compiler.disable(_tell), torch.compiler.disable(_tell_of)
    _replace(torch.autograd, "backward", _tap_backward)
    _replace(torch.optim.Optimizer, "zero_grad", functools.partial(_tap_zero_grad, tell_of))
    _replace(nn.Module, "zero_grad", functools.partial(_tap_zero_grad, tell_of))
    _replace(torch.amp.GradScaler, "scale", functools.partial(_tap_scale, tell))
    _replace(torch.amp.GradScaler, "step", functools.partial(_tap_scaler_step, tell_of))
    _replace(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", functools.partial(_tap_clip, tell))
    _replace(DistributedDataParallel, "forward", functools.partial(_tap_forward, tell))
    loader_taps.install(_replace, _tell)
    begins = register_optimizer_step_pre_hook(lambda optimizer, *_: tell_of("optimizer_begins", optimizer, optimizer))
    stepped = register_optimizer_step_post_hook(
        lambda optimizer, *_: tell_of("optimizer_stepped", optimizer, optimizer)
    )
    _board.undo += [begins.remove, stepped.remove]


def _tell(what: str, *news: Any) -> None:
    for listener in _board.listeners:
        getattr(listener, what)(*news)


def _parameters_of(owner: Any) -> list[Tensor]:
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    # A scaler that is turned off steps whatever it is given.
    groups = getattr(owner, "param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def _tell_of(what: str, owner: Any, *news: Any) -> None:
    _tell(what, _parameters_of(owner), *news)


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
    failed = True
    _board.depth += 1
    try:
        for listener in listeners:
            listener.backward_begins(roots, grad_tensors)
        yield
        failed = False
    finally:
        _board.depth -= 1
        for listener in listeners:
            listener.backward_ended(failed)


def _tap_backward(original: Callable[..., None]) -> Callable[..., None]:
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        with _outermost(tensors, grad_tensors):
            original(tensors, grad_tensors, *args, **kwargs)

    return torch.compiler.disable(backward)  # type: ignore[no-any-return]


def _tap_forward(tell: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        # While it is compiled nothing of ours may end up in the graph.
        if torch.compiler.is_compiling():
            return original(self, *inputs, **kwargs)
        tell("forward_begins", self, (inputs, kwargs))
        output = original(self, *inputs, **kwargs)
        tell("forward_ended", self)
        return output

    return forward


def _tap_zero_grad(tell: Callable[..., None], original: Callable[..., None]) -> Callable[..., None]:
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        tell("gradients_zeroed", self)

    return zero_grad


def _tap_scale(tell: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if self.is_enabled():
            tell("loss_scaled", scaled, self, outputs)
        return scaled

    return scale


def _tap_scaler_step(tell: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(self, optimizer, *args, **kwargs)
        tell("scaler_stepped", optimizer, optimizer)
        return result

    return step


def _tap_clip(tell: Callable[..., None], original: Callable[..., None]) -> Callable[..., None]:
    def clip(
        parameters: Iterable[Tensor] | Tensor, max_norm: float, total_norm: Tensor, *args: Any, **kwargs: Any
    ) -> None:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        tell("clipped", parameters, total_norm)
        original(parameters, max_norm, total_norm, *args, **kwargs)

    return clip
