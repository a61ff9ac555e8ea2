"""Skips a step: gradients that should not count are kept from the optimizer.

Zeros would still move weights, by momentum and by decay. Without a gradient an optimizer passes a parameter over.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class Skipping:
    def __init__(self) -> None:
        self._silenced: dict[int, Tensor] = {}
        self._stepping: dict[int, list[Tensor]] = {}
        """Parameters of the optimizers that have begun a step and not ended it."""

        self._taken: list[tuple[Tensor, Tensor]] = []

    @property
    def stepping(self) -> bool:
        """An optimizer has begun a step and not ended it."""
        return bool(self._stepping)

    def silence(self, parameters: Iterable[Tensor]) -> None:
        self._silenced |= {id(parameter): parameter for parameter in parameters}

    def let_speak(self, parameters: Iterable[Tensor]) -> None:
        """Their gradients are gone; what comes next is heard again."""
        for parameter in parameters:
            self._silenced.pop(id(parameter), None)

    def pass_begins(self, afresh: bool) -> None:
        """:param afresh: What was silenced does not matter any more, even where gradients add up."""
        gone = [one for one in self._silenced.values() if afresh or one.grad is None]
        self.let_speak(gone)

    def silence_with(self, parameters: Iterable[Tensor]) -> None:
        """All of these, if one of them is silenced."""
        parameters = list(parameters)
        if any(id(parameter) in self._silenced for parameter in parameters):
            self.silence(parameters)

    def optimizer_begins(self, parameters: list[Tensor], optimizer: object) -> None:
        self._stepping[id(optimizer)] = parameters
        self._take_away(parameters)

    def backward_ended(self) -> None:
        """Inside a step, too: an optimizer that is given a closure runs forward and backward itself."""
        for parameters in self._stepping.values():
            self._take_away(parameters)

    def optimizer_stepped(self, optimizer: object) -> None:
        """Gradients are there again, as zeros: scripts look at them, or zero them in place."""
        self._stepping.pop(id(optimizer), None)
        if self._stepping:
            return
        for parameter, gradient in self._taken:
            if parameter.grad is None:
                parameter.grad = gradient.zero_()
        self._taken = []

    def _take_away(self, parameters: list[Tensor]) -> None:
        for parameter in parameters:
            if self._silenced.pop(id(parameter), None) is not None and parameter.grad is not None:
                self._taken.append((parameter, parameter.grad))
                parameter.grad = None
