"""An optimizer's memory and options: copied, compared with the optimizer, put back bit by bit."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unisono.act.checkpoints.copies import copied, plain
from unisono.act.checkpoints.plain_files import CheckpointError
from unisono.listen.evidence.weight_prints import is_sharded


def capture(optimizer: Any, number: int) -> dict[str, Any]:
    inner = _inner(optimizer)
    state = inner.state_dict()
    return {
        "class": type(inner).__name__,
        "shapes": _shapes(inner),
        "groups": plain(f"optimizer {number}'s groups", state["param_groups"]),
        "state": copied(state["state"]),
    }


def differs_by_rank(optimizer: Any) -> bool:
    """Workers divide the memory between them; known by its class, or because some parameters are not remembered."""
    if is_sharded(optimizer):
        return True
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    remembered = sum(bool(optimizer.state.get(parameter)) for parameter in parameters)
    return 0 < remembered < len(parameters)


def check(optimizer: Any, saved: Any, number: int) -> None:
    if not isinstance(saved, dict) or {"class", "shapes", "groups", "state"} - saved.keys():
        raise _other(number, "none of it in the checkpoint")
    inner = _inner(optimizer)
    if saved["class"] != type(inner).__name__:
        raise _other(number, f"`{saved['class']}` in the checkpoint, and `{type(inner).__name__}` here")
    sizes, here = [len(group) for group in saved["shapes"]], [len(group["params"]) for group in inner.param_groups]
    if sizes != here:
        raise _other(number, f"groups of {sizes} parameters in the checkpoint, and of {here} here")
    if saved["shapes"] != _shapes(inner):
        raise _other(number, "parameters of other shapes or types in the checkpoint")
    if [len(group["params"]) for group in saved["groups"]] != sizes:
        raise _other(number, "groups in the checkpoint that contradict each other")


def put_back(optimizer: Any, saved: dict[str, Any]) -> None:
    """Groups, and tensors among their options, stay the same objects: scripts hold on to them."""
    inner = _inner(optimizer)
    groups = inner.param_groups
    held = list(groups)
    # A copy: `load_state_dict` keeps tensors that need no cast, and training would then write into the checkpoint.
    inner.load_state_dict({"state": copied(saved["state"]), "param_groups": copied(saved["groups"])})
    for group, loaded in zip(held, list(inner.param_groups), strict=True):
        _take_over(group, loaded)
    groups[:] = held
    inner.param_groups = groups
    _undo_casts(inner, saved)
    if inner is not optimizer:
        for group, loaded in zip(optimizer.param_groups, groups, strict=True):
            group.update({key: value for key, value in loaded.items() if key != "params"})


def _take_over(group: dict[str, Any], loaded: dict[str, Any]) -> None:
    for key in group.keys() - loaded.keys():
        del group[key]
    for key, value in loaded.items():
        old = group.get(key)
        if isinstance(old, Tensor) and isinstance(value, Tensor) and old.shape == value.shape:
            group[key] = old.copy_(value)
        else:
            group[key] = value


def _undo_casts(inner: Any, saved: dict[str, Any]) -> None:
    """torch casts what is remembered to the type of its parameter, also where the optimizer chose another one."""
    for group, loaded in zip(inner.param_groups, saved["groups"], strict=True):
        for parameter, index in zip(group["params"], loaded["params"], strict=True):
            here = inner.state.get(parameter, {})
            for key, value in saved["state"].get(index, {}).items():
                live = here.get(key)
                if isinstance(value, Tensor) and isinstance(live, Tensor) and live.dtype != value.dtype:
                    here[key] = value.to(live.device, copy=True)


def _inner(optimizer: Any) -> Any:
    """ZeroRedundancyOptimizer leaves this worker's share to an optimizer of its own."""
    if not is_sharded(optimizer):
        return optimizer
    if not hasattr(optimizer, "optim"):
        raise CheckpointError(
            "A ZeroRedundancyOptimizer should have begun its work before a checkpoint. Found one that has not. "
            "Use it without `overlap_with_ddp`."
        )
    return optimizer.optim


def _shapes(inner: Any) -> list[list[list[Any]]]:
    return [[[str(p.dtype), *p.shape] for p in group["params"]] for group in inner.param_groups]


def _other(number: int, found: str) -> CheckpointError:
    return CheckpointError(
        f"A checkpoint should be of these optimizers. Found for optimizer {number}: {found}. "
        "Make the optimizer as it was made for the run that wrote the checkpoint."
    )
