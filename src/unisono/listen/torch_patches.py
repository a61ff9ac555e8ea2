"""Where unisono listens in on torch: `backward`, `zero_grad`, `GradScaler`, gradient clipping and optimizer steps.

The functions are replaced while somebody listens and put back afterwards. A patch passes arguments and results through
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

from unisono.common.unseen_frame import unseen_by_warnings
from unisono.listen import dataloader_patches


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


class _Patched:
    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.depth = 0
        self.undo: list[Callable[[], None]] = []


_patched = _Patched()


def connect(listener: Listener) -> None:
    # First: installing takes a while, and one who is disconnected meanwhile, by the garbage collector, must not seem to
    # be the last.
    _patched.listeners = (*_patched.listeners, listener)
    if not _patched.undo:
        _install()


def disconnect(listener: Listener) -> None:
    _patched.listeners = tuple(other for other in _patched.listeners if other is not listener)
    if not _patched.listeners:
        while _patched.undo:
            _patched.undo.pop()()


def _install() -> None:
    # A compiled training step must not trace into the listeners.
    untraced: Callable[[Callable[..., None]], Callable[..., None]] = torch.compiler.disable
    zeroed = untraced(_gradients_zeroed)
    _replace(torch.autograd, "backward", _patch_backward)
    _replace(torch.optim.Optimizer, "zero_grad", functools.partial(_patch_zero_grad, zeroed))
    _replace(nn.Module, "zero_grad", functools.partial(_patch_zero_grad, zeroed))
    _replace(torch.amp.GradScaler, "scale", functools.partial(_patch_scale, untraced(_loss_scaled)))
    _replace(torch.amp.GradScaler, "step", functools.partial(_patch_scaler_step, untraced(_scaler_stepped)))
    clip = functools.partial(_patch_clip, untraced(_clipped))
    _replace(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", clip)
    forward = functools.partial(_patch_forward, untraced(_forward_begins), untraced(_forward_ended))
    _replace(DistributedDataParallel, "forward", forward)
    dataloader_patches.install(_replace, _loading_begins, _loaded)
    begins = register_optimizer_step_pre_hook(untraced(_optimizer_begins))
    stepped = register_optimizer_step_post_hook(untraced(_optimizer_stepped))
    _patched.undo += [begins.remove, stepped.remove]


def _gradients_zeroed(owner: Any) -> None:
    parameters = _parameters_of(owner)
    for listener in _patched.listeners:
        listener.gradients_zeroed(parameters)


def _loss_scaled(scaled: Any, scaler: Any, losses: Any) -> None:
    for listener in _patched.listeners:
        listener.loss_scaled(scaled, scaler, losses)


def _scaler_stepped(optimizer: Any) -> None:
    parameters = _parameters_of(optimizer)
    for listener in _patched.listeners:
        listener.scaler_stepped(parameters, optimizer)


def _clipped(parameters: list[Tensor], norm: Tensor) -> None:
    for listener in _patched.listeners:
        listener.clipped(parameters, norm)


def _optimizer_begins(optimizer: Any, *_: Any) -> None:
    parameters = _parameters_of(optimizer)
    for listener in _patched.listeners:
        listener.optimizer_begins(parameters, optimizer)


def _optimizer_stepped(optimizer: Any, *_: Any) -> None:
    parameters = _parameters_of(optimizer)
    for listener in _patched.listeners:
        listener.optimizer_stepped(parameters, optimizer)


def _forward_begins(model: Any, inputs: Any) -> None:
    for listener in _patched.listeners:
        listener.forward_begins(model, inputs)


def _forward_ended(model: Any) -> None:
    for listener in _patched.listeners:
        listener.forward_ended(model)


def _loading_begins(iterator: Any) -> None:
    for listener in _patched.listeners:
        listener.loading_begins(iterator)


def _loaded(iterator: Any, data: Any, indices: list[int] | None) -> None:
    for listener in _patched.listeners:
        listener.loaded(iterator, data, indices)


def _parameters_of(owner: Any) -> list[Tensor]:
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    # A scaler that is turned off steps whatever it is given.
    groups = getattr(owner, "param_groups", ())
    return [parameter for group in groups for parameter in group["params"]]


def _replace(owner: Any, name: str, patch: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return
    patched = functools.wraps(original)(unseen_by_warnings(patch(original)))
    setattr(owner, name, patched)

    def put_back() -> None:
        # Somebody may have wrapped our patch meanwhile; taking theirs away would change the user's program.
        if getattr(owner, name, None) is patched:
            setattr(owner, name, original)

    _patched.undo.append(put_back)


@contextmanager
def _outermost(roots: Any, grad_tensors: Any) -> Iterator[None]:
    """Reentrant checkpointing calls `backward` inside a backward pass: only the outermost counts."""
    outermost = _patched.depth == 0
    listeners = _patched.listeners if outermost else ()
    failed = True
    _patched.depth += 1
    try:
        for listener in listeners:
            listener.backward_begins(roots, grad_tensors)
        yield
        failed = False
    finally:
        _patched.depth -= 1
        for listener in listeners:
            listener.backward_ended(failed)


def _patch_backward(original: Callable[..., None]) -> Callable[..., None]:
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        with _outermost(tensors, grad_tensors):
            original(tensors, grad_tensors, *args, **kwargs)

    return torch.compiler.disable(backward)  # type: ignore[no-any-return]


def _patch_forward(
    forward_begins: Callable[..., None], forward_ended: Callable[..., None], original: Callable[..., Any]
) -> Callable[..., Any]:
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        # While it is compiled nothing of ours may end up in the graph.
        if torch.compiler.is_compiling():
            return original(self, *inputs, **kwargs)
        forward_begins(self, (inputs, kwargs))
        output = original(self, *inputs, **kwargs)
        forward_ended(self)
        return output

    return forward


def _patch_zero_grad(gradients_zeroed: Callable[..., None], original: Callable[..., None]) -> Callable[..., None]:
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        gradients_zeroed(self)

    return zero_grad


def _patch_scale(loss_scaled: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if self.is_enabled():
            loss_scaled(scaled, self, outputs)
        return scaled

    return scale


def _patch_scaler_step(scaler_stepped: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(self, optimizer, *args, **kwargs)
        scaler_stepped(optimizer)
        return result

    return step


def _patch_clip(clipped: Callable[..., None], original: Callable[..., None]) -> Callable[..., None]:
    def clip(
        parameters: Iterable[Tensor] | Tensor, max_norm: float, total_norm: Tensor, *args: Any, **kwargs: Any
    ) -> None:
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        clipped(parameters, total_norm)
        original(parameters, max_norm, total_norm, *args, **kwargs)

    return clip
