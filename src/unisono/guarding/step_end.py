"""When a step is over: after the last of the optimizers that usually step, or where the script says so."""

from __future__ import annotations


class StepEnd:
    def __init__(self) -> None:
        self._usual: set[int] = set()
        self._stepped: set[int] = set()
        self._told = self._by_hand = False

    def pass_begins(self) -> None:
        """Optimizers that have stepped belong to the step before."""
        if self._stepped:
            self._usual = self._stepped
            self._stepped = set()
        self._told = False

    def optimizer_stepped(self, optimizer: object) -> bool:
        """Whether the step is over. Not known in the first step: more optimizers may follow."""
        self._stepped.add(id(optimizer))
        over = bool(self._usual) and self._stepped >= self._usual and not self._told and not self._by_hand
        self._told = self._told or over
        return over

    def told(self) -> bool:
        """The script says that the step is over; from now on only its word counts."""
        over = not self._told
        self._by_hand, self._told = True, True
        return over
