"""Which checkpoints there are and how far each is trusted; in step numbers only."""

from __future__ import annotations


class Ledger:
    """A checkpoint waits until enough quiet steps have passed, is then healthy, and agreed once all workers hold it."""

    def __init__(self, keep: int, quiet: int) -> None:
        self._keep = keep
        self._quiet = quiet
        self._waiting: list[int] = []
        self._healthy: list[int] = []
        self._agreed: list[int] = []

    def has_room(self) -> bool:
        """Newer ones are refused, not older ones forgotten: else none would wait long enough to become healthy."""
        return len(self._waiting) < self._keep

    def add(self, step: int) -> None:
        self.remove(step)
        self._waiting.append(step)

    def add_agreed(self, step: int) -> None:
        self.remove(step)
        self._agreed = sorted([*self._agreed, step])

    def knows(self, step: int) -> bool:
        return step in self._waiting or step in self._healthy or step in self._agreed

    def is_agreed(self, step: int) -> bool:
        return step in self._agreed

    def remove(self, step: int) -> None:
        for steps in (self._waiting, self._healthy, self._agreed):
            if step in steps:
                steps.remove(step)

    def quiet(self, step: int) -> tuple[int, ...]:
        """`step` has passed without trouble. Returns those that have become healthy by it."""
        grown = tuple(kept for kept in self._waiting if step - kept >= self._quiet)
        self._waiting = [kept for kept in self._waiting if kept not in grown]
        self._healthy += grown
        return grown

    def trouble(self, first_step: int) -> tuple[int, ...]:
        """Returns those to be dropped: all that waited, and those taken when trouble had begun unnoticed."""
        tainted = [step for step in (*self._healthy, *self._agreed) if step >= first_step]
        dropped = tuple(sorted([*self._waiting, *tainted]))
        for step in dropped:
            self.remove(step)
        return dropped

    def agreed(self, step: int) -> tuple[int, ...]:
        """Returns those that are not needed any more: not among the newest few, or overtaken before all agreed."""
        if step in self._healthy:
            self.add_agreed(step)
        overtaken = [kept for kept in (*self._waiting, *self._healthy) if kept < step]
        surplus = self._agreed[: -self._keep]
        for kept in (*overtaken, *surplus):
            self.remove(kept)
        return tuple(sorted([*overtaken, *surplus]))

    def healthy(self) -> tuple[int, ...]:
        return tuple(sorted([*self._healthy, *self._agreed]))
