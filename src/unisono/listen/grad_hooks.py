"""Hooks that see each gradient as it arrives, before all-reduce.

A few sentries stay for the whole run; the others are set for the backward passes that are listened to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Arrival = Callable[[int, Tensor], None]


class GradientHooks:
    def __init__(self, parameters: list[nn.Parameter], at_sentry: Arrival, elsewhere: Arrival) -> None:
        self.fired: dict[int, int] = {}
        """How often each gradient has arrived in this backward pass, in order of first arrival."""

        self.sentries: tuple[int, ...] = ()
        self.finite_check = 0
        """A small parameter near the input: its gradient is finite only if all that came before it was."""

        self.everywhere = False
        """The sentries were not enough to notice every backward pass."""

        self._parameters, self._at_sentry, self._elsewhere = parameters, at_sentry, elsewhere
        self._usual = [1] * len(parameters)
        self._standing: list[RemovableHandle] = []
        self._passing: list[RemovableHandle] = []
        self._learned = False
        self._post_sentries(range(len(parameters))[::-1])

    def listen_to_all(self) -> None:
        if self._passing:
            return
        others = (index for index in range(len(self._parameters)) if index not in self.sentries)
        self._passing = [self._set(index, self._elsewhere) for index in others]

    def count(self, index: int) -> bool:
        """Notes an arrival; true when the gradient is complete.

        A parameter used in several checkpointed segments arrives several times in one backward pass.
        """
        self.fired[index] = fired = self.fired.get(index, 0) + 1
        return fired == self._usual[index]

    def as_usual(self) -> bool:
        """Whether every gradient arrived as often as last time. Remembers how often it was."""
        usual = all(self._usual[index] == count for index, count in self.fired.items())
        for index, count in self.fired.items():
            self._usual[index] = count
        if not self._learned:
            self._learned = True
            self._post_sentries(list(self.fired))
        return usual

    def rest(self) -> None:
        for handle in self._passing:
            handle.remove()
        self._passing = []

    def remove(self) -> None:
        self.rest()
        for handle in self._standing:
            handle.remove()
        self._parameters = []

    def _post_sentries(self, arrivals: Sequence[int]) -> None:
        """The first gradient to arrive, the last, and the smallest of the last third: all of them are in use."""
        self.rest()
        for handle in self._standing:
            handle.remove()
        late = arrivals[-max(1, len(arrivals) // 3) :]
        self.finite_check = min(late, key=lambda index: self._parameters[index].numel())
        self.sentries = tuple({arrivals[0], self.finite_check, arrivals[-1]})
        self._standing = [self._set(index, self._at_sentry) for index in self.sentries]

    def _set(self, index: int, arrived: Arrival) -> RemovableHandle:
        hook = functools.partial(arrived, index)
        handle: RemovableHandle = self._parameters[index].register_post_accumulate_grad_hook(hook)
        return handle
