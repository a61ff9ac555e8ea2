"""A model's parameters and buffers: copied, compared with the model, copied back in place."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unisono.act.checkpoints.copies import copied, plain
from unisono.act.checkpoints.plain_files import CheckpointError


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: copied(parameter) for name, parameter in module.named_parameters()}


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """All of them: a script may count in one that it does not save."""
    return {name: copied(buffer) for name, buffer in module.named_buffers()}


def extras_of(module: nn.Module) -> dict[str, Any]:
    """What modules keep beside their tensors (`get_extra_state`)."""
    return {
        name: plain(f"module `{name}`", part.get_extra_state())
        for name, part in module.named_modules()
        if type(part).get_extra_state is not nn.Module.get_extra_state
    }


def check_parameters(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    _check_same("parameter", dict(module.named_parameters()), saved)


def check_buffers(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    passing = _not_persistent(module)
    live = {name: buffer for name, buffer in module.named_buffers() if name not in passing}
    _check_same("buffer", live, {name: tensor for name, tensor in saved.items() if name not in passing})
    for name, buffer in module.named_buffers():
        if name in saved and _alike(buffer, saved[name]) and _overlaps(buffer) and not _equal(buffer, saved[name]):
            raise CheckpointError(
                f"A buffer should own its elements to be put back. Found `{name}`, an expanded view. Register a clone."
            )


def check_extras(module: nn.Module, saved: Mapping[str, Any]) -> None:
    _check_names("module with extra state", extras_of(module), saved)


def put_back_parameters(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(saved[name])


def put_back_buffers(module: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """A buffer that is not saved with the model may have grown since, as caches do: then it is left alone."""
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name in saved and _alike(buffer, saved[name]) and not _overlaps(buffer):
                buffer.copy_(saved[name])


def put_back_extras(module: nn.Module, saved: Mapping[str, Any]) -> None:
    for name, part in module.named_modules():
        if name in saved:
            part.set_extra_state(copy.deepcopy(saved[name]))


def not_finite(replica: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """What is spoilt. Masks hold minus infinity by design, so that only `nan` speaks against a buffer."""
    for name, tensor in replica.get("parameters", {}).items():
        if not bool(torch.isfinite(tensor).all()):
            return f"parameter `{name}`"
    for name, tensor in own.get("buffers", {}).items():
        if bool(torch.isnan(tensor).any()):
            return f"buffer `{name}`"
    return None


def _check_same(kind: str, live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    _check_names(kind, live, saved)
    for name, tensor in live.items():
        if not isinstance(saved[name], Tensor) or not _alike(tensor, saved[name]):
            raise CheckpointError(
                f"A checkpoint should be of this model. Found {kind} `{name}` with {_form(saved[name])} in it, and "
                f"with {_form(tensor)} in the model. Use a checkpoint of this model."
            )


def _check_names(kind: str, live: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for name in sorted(live.keys() ^ saved.keys()):
        where = "the model and not in the checkpoint" if name in live else "the checkpoint and not in the model"
        raise CheckpointError(
            f"A checkpoint should be of this model. Found {kind} `{name}` in {where}. Use a checkpoint of this model."
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.layout) == (other.shape, other.dtype, other.layout)


def _form(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"`{type(value).__name__}` instead of a tensor"
    return f"shape {list(value.shape)} and {str(value.dtype).removeprefix('torch.')}"


def _not_persistent(module: nn.Module) -> set[str]:
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }


def _overlaps(tensor: Tensor) -> bool:
    """Several of its elements are one place in memory, which cannot be written to."""
    if tensor.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def _equal(live: Tensor, saved: Tensor) -> bool:
    return torch.equal(live.detach().cpu(), saved)
