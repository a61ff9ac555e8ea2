"""Fingerprints of what must be equal on all workers, taken on the training thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from unisono.sketch import total_square
from unisono.sketch.fingerprint import fingerprint, fingerprints, prepare, projections

PARTS = 50
"""Readings over which every parameter is compared once."""

Print = int | Tensor


class WeightPrints:
    def __init__(self, names: Sequence[str], parameters: Sequence[nn.Parameter]) -> None:
        self.names = list(names)
        self._device = parameters[0].device
        self._parameters: list[nn.Parameter] = list(parameters)
        self.parts = max(1, min(PARTS, len(self._parameters)))
        self._part_of = _even_parts([parameter.numel() for parameter in self._parameters], self.parts)
        for parameter in self._parameters:
            # The optimizer's memory of it may be kept in double precision.
            prepare(parameter.device, 8 * parameter.numel())

    def release(self) -> None:
        self._parameters = []

    def gradients(self, part: int, parts: int) -> Print:
        return fingerprint([parameter.grad for parameter in self._part(part, parts)])

    def weights(self, part: int, parts: int) -> tuple[dict[str, Print], float | Tensor]:
        """The fingerprint of each parameter by its name, and the squared norm of all of them."""
        indices = self._indices(part, parts)
        weights = [self._parameters[index].detach() for index in indices]
        prints = dict(zip((self.names[index] for index in indices), fingerprints(weights), strict=True))
        return prints, total_square(weights, self._device)

    def all_weights(self) -> Print:
        return fingerprint([parameter.detach() for parameter in self._parameters])

    def state(self, optimizer: Any, part: int, parts: int) -> Print | None:
        """Of the optimizer's memory of these parameters; None where workers hold different shares of it by design."""
        if is_sharded(optimizer) or is_divided(optimizer):
            return None
        mine = self._part(part, parts)
        states = [optimizer.state.get(parameter, {}) for parameter in mine]
        return fingerprint([state[key] for state in states for key in sorted(state) if isinstance(state[key], Tensor)])

    def projections(self) -> dict[str, Any]:
        return {name: projections(p.detach(), seed=1) for name, p in zip(self.names, self._parameters, strict=True)}

    def _part(self, part: int, parts: int) -> list[nn.Parameter]:
        return [self._parameters[index] for index in self._indices(part, parts)]

    def _indices(self, part: int, parts: int) -> list[int]:
        everything = range(len(self._parameters))
        return list(everything) if parts == 1 else [index for index in everything if self._part_of[index] == part]


def is_sharded(optimizer: Any) -> bool:
    return any(cls.__name__ == "ZeroRedundancyOptimizer" for cls in type(optimizer).__mro__)


def is_divided(optimizer: Any) -> bool:
    """Some parameters that have a gradient are remembered and others are not: workers may share that work."""
    reached = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    remembered = sum(bool(optimizer.state.get(parameter)) for parameter in reached)
    return 0 < remembered < len(reached)


def numbers_of(optimizer: Any) -> tuple[tuple[str, float], ...]:
    """All numbers in the optimizer's groups, without those that lie on a device."""
    named: list[tuple[str, float]] = []
    for group in optimizer.param_groups:
        for key in sorted(group):
            values = group[key] if isinstance(group[key], tuple) else (group[key],)
            named += [(key, float(value)) for value in map(_number, values) if value is not None]
    return tuple(named)


def learning_rate(optimizer: Any) -> float | None:
    groups = optimizer.param_groups
    return _number(groups[0].get("lr")) if groups else None


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


def _even_parts(sizes: Sequence[int], parts: int) -> list[int]:
    """A part for each parameter: neighbours together, even by elements, none of the parts empty."""
    owners: list[int] = []
    total, seen = max(1, sum(sizes)), 0
    for place, size in enumerate(sizes):
        wanted = min(parts - 1, (seen + size // 2) * parts // total)
        still_needed = parts - (len(sizes) - place)
        lowest = owners[-1] if owners else 0
        highest = owners[-1] + 1 if owners else 0
        owners.append(min(highest, max(lowest, wanted, still_needed)))
        seen += size
    return owners
