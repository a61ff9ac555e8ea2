"""When a step is over: after the last of the optimizers that step these days, or where the script says so."""

from __future__ import annotations

REMEMBERED = 100
"""Steps after which an optimizer that has not stepped is not waited for any more."""


class StepEnd:
    def __init__(self) -> None:
        self._steps = 0
        self._last: dict[int, int] = {}
        """Of each optimizer: the step in which it last stepped."""

        self._told = self._by_hand = False

    def pass_begins(self) -> None:
        """The first one of a step."""
        self._steps += 1
        self._last = {one: last for one, last in self._last.items() if self._steps - last <= REMEMBERED}
        self._told = False

    def optimizer_stepped(self, optimizer: object) -> bool:
        """Whether the step is over. Not known in the first one: more optimizers may follow."""
        self._last[id(optimizer)] = self._steps
        complete = self._steps > 1 and all(last == self._steps for last in self._last.values())
        over = complete and not self._told and not self._by_hand
        self._told = self._told or over
        return over

    def told(self) -> bool:
        """The script says that the step is over; from now on only its word counts."""
        over = not self._told
        self._by_hand, self._told = True, True
        return over
