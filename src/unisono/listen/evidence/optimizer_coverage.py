"""Which parameters are trained: held by an optimizer that steps, and reached by a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn

from unisono.listen.evidence.weight_prints import is_sharded, learning_rate, numbers_of

LOOKED_AFTER = 20
"""Steps after which a parameter that no optimizer has held is one that none will hold."""

MOST_NAMED = 20


class OptimizerCoverage:
    def __init__(self, named_parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        self._named = list(named_parameters)
        self._ids = {id(parameter) for _, parameter in self._named}
        self._known: WeakSet[Any] = WeakSet()
        self._described: WeakSet[Any] = WeakSet()
        self._held: set[int] = set()
        self._reached: set[int] = set()
        self._steps = 0
        self._missing: list[str] = []

    def owns(self, parameters: list[Tensor], optimizer: Any) -> bool:
        """Whether the optimizer trains our model. Takes note of what it holds."""
        if optimizer not in self._known or self._steps <= LOOKED_AFTER or self._missing:
            self._known.add(optimizer)
            self._held |= {id(parameter) for parameter in parameters} & self._ids
        return any(id(parameter) in self._ids for parameter in parameters)

    def is_new(self, optimizer: Any) -> bool:
        new = optimizer not in self._described
        self._described.add(optimizer)
        return new

    def look(self, facts: dict[str, dict[str, str]]) -> None:
        """At the end of each step; after some of them the facts are told."""
        self._steps += 1
        if self._steps <= LOOKED_AFTER:
            self._reached |= {id(parameter) for _, parameter in self._named if parameter.grad is not None}
        before = self._missing
        if self._steps >= LOOKED_AFTER and self._known and (before or self._steps == LOOKED_AFTER):
            self._missing = [name for name, parameter in self._named if id(parameter) not in self._held]
            if self._missing != before or self._steps == LOOKED_AFTER:
                facts["parameters"] = self._summary()

    def release(self) -> None:
        self._named = []

    def _summary(self) -> dict[str, str]:
        silent = [name for name, p in self._named if id(p) not in self._reached and id(p) in self._held]
        lists = {"not optimised": self._missing, "never with gradient": silent}
        return {"trainable": str(len(self._named))} | {title: _listed(names) for title, names in lists.items() if names}


def describe(optimizer: Any) -> dict[str, str]:
    """Its facts for the comparison before the first step."""
    numbers = dict.fromkeys(f"{key}={value:g}" for key, value in numbers_of(optimizer) if key != "lr")
    rate = learning_rate(optimizer)
    return {
        "class": type(optimizer).__name__,
        "groups": str(len(optimizer.param_groups)),
        "numbers": " ".join(numbers),
        "lr": "" if rate is None else f"{rate:.9g}",
        "sharded state": "yes" if is_sharded(optimizer) else "no",
    }


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
