"""What has to be equal on all workers: parameters, buffers, and what optimizers remember."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unisono.common.layer_groups import canonical_name
from unisono.listen.evidence.weight_prints import is_divided, is_sharded
from unisono.sketch.fingerprint import fingerprint, hash_of

KINDS = ("parameters", "buffers", "optimizers")
_NOT_COMPARED = frozenset({"params", "param_names", "foreach", "fused", "capturable", "differentiable"})
"""How a step is computed, not which step it is."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """One optimizer's memory of one parameter, or where there is none, the settings of its groups."""

    name: str
    optimizer: Any
    parameter: Tensor | None

    def memory(self) -> Any:
        if self.parameter is not None:
            return self.optimizer.state.get(self.parameter, {})
        return [_settings(group) for group in self.optimizer.param_groups]

    def packed(self) -> Any:
        return packed(self.memory())

    def take_over(self, received: Any) -> None:
        if self.parameter is None:
            for group, settings in zip(self.optimizer.param_groups, received, strict=True):
                device = group["params"][0].device if group["params"] else torch.device("cpu")
                group.update(taken_over(_settings(group), settings, device))
            return
        own = self.optimizer.state[self.parameter]
        new = taken_over(own, received, self.parameter.device)
        own.clear()
        own.update(new)
        if not own:
            # As before its first step.
            del self.optimizer.state[self.parameter]


class Inventory:
    def __init__(self, module: nn.Module, optimizers: Sequence[Any], buffers: bool = True) -> None:
        inner: Any = getattr(module, "_orig_mod", module)
        # DDP makes these buffers equal with the next forward pass; until then they differ in every healthy run.
        shared = isinstance(inner, DistributedDataParallel) and inner.broadcast_buffers
        inner = inner.module if isinstance(inner, DistributedDataParallel) else inner
        ignored = set(getattr(inner, "_ddp_params_and_buffers_to_ignore", ()))
        self.parameters = _comparable(dict(inner.named_parameters()), ignored)
        self.buffers = {} if shared or not buffers else _comparable(dict(inner.named_buffers()), ignored)
        self.remembered = self._remembered(optimizers)
        self.divided = any(is_divided(optimizer) for optimizer in optimizers if not is_sharded(optimizer))
        """Workers may have shared out an optimizer's work by hand."""

        self.device = next(iter(self.parameters.values())).device if self.parameters else torch.device("cpu")
        self._optimizers = list(optimizers)

    def _remembered(self, optimizers: Sequence[Any]) -> list[Remembered]:
        name_of = {id(parameter): name for name, parameter in self.parameters.items()}
        found = []
        for optimizer in optimizers:
            if is_sharded(optimizer):
                continue
            found.append(Remembered("settings", optimizer, None))
            of_groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            # Another model's are none of this group's business.
            found += [Remembered(name_of[id(p)], optimizer, p) for p in of_groups if id(p) in name_of]
        return found

    def names(self, kind: str) -> list[str]:
        if kind == "optimizers":
            return [f"optimizer: {_bare(each.name)}" for each in self.remembered]
        return [_bare(name) for name in self.tensors(kind)]

    def tensors(self, kind: str) -> dict[str, Tensor]:
        return self.parameters if kind == "parameters" else self.buffers

    def forms(self) -> list[int]:
        """A number a kind: without the same form, workers cannot be compared."""
        tensors = [
            hash_of([(name, str(value.dtype), tuple(value.shape)) for name, value in self.tensors(kind).items()])
            for kind in KINDS[:2]
        ]
        built = [(type(each).__qualname__, len(each.param_groups)) for each in self._optimizers]
        return [*tensors, hash_of([*built, *self.names("optimizers")])]

    def whole_prints(self) -> list[int | Tensor]:
        """A number a kind. Many tensors at once: on a GPU each alone would take a dozen launches."""
        memory = [each.memory() for each in self.remembered]
        return [fingerprint(_values(self.parameters)), fingerprint(_values(self.buffers)), print_of(memory)]

    def prints(self, kind: str) -> list[int | Tensor]:
        """A number each."""
        if kind == "optimizers":
            return [print_of(each.memory()) for each in self.remembered]
        return [fingerprint([value]) for value in _values(self.tensors(kind))]


def _comparable(named: Mapping[str, Tensor], ignored: set[str]) -> dict[str, Tensor]:
    return {name: value for name, value in named.items() if name not in ignored and _has_memory(value)}


def _has_memory(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def _bare(name: str) -> str:
    return canonical_name(f"module.{name}")


def _values(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors.values()]


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _NOT_COMPARED}


_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str)
_TENSOR, _PLACE = "unisono.tensor", "unisono.place"


def print_of(memory: Any) -> int | Tensor:
    found = list(_leaves(memory, ""))
    words = [(path, None if isinstance(value, Tensor) else _plain(value)) for path, value in found]
    return fingerprint([value for _, value in found if isinstance(value, Tensor)], seed=hash_of(words))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from _leaves(each, f"{path}/{place}")
    elif not _is_odd(value):
        yield path, value


def _is_odd(value: Any) -> bool:
    return not (value is None or isinstance(value, (Tensor, dict, list, tuple, *_PLAIN)))


def _plain(value: Any) -> Any:
    """Without what others have made of Python's own types: numpy's float64 is a float, too."""
    return next((kind(value) for kind in _PLAIN if isinstance(value, kind)), None)


def packed(value: Any) -> Any:
    """In a form that can be saved, and loaded with `weights_only=True`."""
    if isinstance(value, Tensor):
        # A copy: of a part of something larger, all of it would be saved.
        return {_TENSOR: value.detach().clone().cpu(), _PLACE: value.device.type}
    if isinstance(value, dict):
        return {_plain(key): packed(each) for key, each in value.items() if not _is_odd(each)}
    if isinstance(value, list | tuple):
        # Tuples that have names for their places do not load.
        return (list if isinstance(value, list) else tuple)(packed(each) for each in value)
    return _plain(value)


def taken_over(own: Any, received: Any, device: torch.device) -> Any:
    """
    What was received, in the place of what this worker has: tensors are filled where they fit, and stay who they are.

    :param device: Of the parameter; what lay on the host on the other worker lies there on this one.
    """
    if isinstance(received, dict) and _TENSOR in received:
        value = received[_TENSOR]
        if isinstance(own, Tensor) and (own.shape, own.dtype, own.layout) == (value.shape, value.dtype, value.layout):
            own.data.copy_(value)
            return own
        return value.to("cpu" if received[_PLACE] == "cpu" else device)
    if isinstance(received, dict):
        mine = own if isinstance(own, dict) else {}
        new = {key: taken_over(mine.get(key), each, device) for key, each in received.items()}
        return new | {key: value for key, value in mine.items() if _is_odd(value)}
    if isinstance(received, list | tuple):
        fits = isinstance(own, list | tuple) and len(own) == len(received)
        pairs = zip(own if fits else [None] * len(received), received, strict=True)
        return type(received)(taken_over(mine, each, device) for mine, each in pairs)
    return received
