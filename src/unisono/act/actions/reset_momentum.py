"""Makes optimizers forget: their next step is the first one of a new optimizer with the same settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.listen.evidence.weight_prints import is_sharded

_BEGIN_AT_ONE = frozenset({"mu", "mu_product"})
_BEGIN_AT_THE_RATE = frozenset({"eta", "step_size"})


@torch.no_grad()
def reset_momentum(optimizers: Sequence[Any]) -> int:
    """How many tensors were forgotten. Settings stay: learning rates, and what a scheduler or a group counts."""
    return sum(_reset(_holder(optimizer)) for optimizer in optimizers)


def _holder(optimizer: Any) -> Any:
    """Who has the memory: behind one that is sharded, an optimizer of this worker's share."""
    return getattr(optimizer, "optim", optimizer) if is_sharded(optimizer) else optimizer


def _reset(optimizer: Any) -> int:
    count = sum(_tensors_in(state) for state in optimizer.state.values())
    kept = {id(parameter) for group in optimizer.param_groups for parameter in _begun_again(optimizer, group)}
    for parameter in [key for key in optimizer.state if id(key) not in kept]:
        # Torch makes an optimizer's memory with its first step: to remove it is to begin.
        del optimizer.state[parameter]
    return count


def _begun_again(optimizer: Any, group: dict[str, Any]) -> Iterable[Tensor]:
    """Parameters of which the memory stays where it is, with the values of a beginning."""
    if isinstance(optimizer, torch.optim.Adagrad):
        # It makes its memory when it is built, and in older versions of torch never again.
        total = optimizer.defaults["initial_accumulator_value"]
    elif group.get("capturable") and type(optimizer).__module__.startswith("torch.optim."):
        # A captured graph goes on writing to these tensors.
        total = 0.0
    else:
        return
    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        if state:
            for key, value in state.items():
                _fill(value, _beginning(key, total, group))
            yield parameter


def _beginning(key: str, total: float, group: dict[str, Any]) -> float:
    if key in _BEGIN_AT_ONE:
        return 1.0
    if key in _BEGIN_AT_THE_RATE:
        return float(group["lr"])
    return total if key == "sum" else 0.0


def _fill(value: Tensor, number: float) -> None:
    value.fill_(complex(number, number) if value.is_complex() else number)


def _tensors_in(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_tensors_in, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_tensors_in, value))
    return int(isinstance(value, Tensor))
