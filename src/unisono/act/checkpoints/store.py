"""Where checkpoints are kept until they are needed or too old: in memory, or by the script itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from unisono.act.checkpoints import model_part
from unisono.act.checkpoints.ledger import Ledger
from unisono.act.checkpoints.plain_files import CheckpointError
from unisono.act.checkpoints.snapshot import Snapshot


class CheckpointStore(Protocol):
    captures: bool
    """Whether `keep` wants a snapshot with content, and `fetch` returns one."""

    def has_room(self) -> bool: ...
    def keep(self, snapshot: Snapshot) -> None: ...
    def quiet(self, step: int) -> None: ...
    def trouble(self, first_step: int) -> None: ...
    def held(self) -> tuple[int, ...]: ...
    def fetch(self, step: int) -> Snapshot: ...
    def agreed(self, step: int) -> None: ...
    def close(self) -> None: ...


class MemoryStore:
    """At most `keep` that wait, and as many that are healthy."""

    captures = True

    def __init__(self, keep: int, quiet: int) -> None:
        self._ledger = Ledger(keep, quiet)
        self._snapshots: dict[int, Snapshot] = {}

    def has_room(self) -> bool:
        return self._ledger.has_room()

    def keep(self, snapshot: Snapshot) -> None:
        if self.has_room():
            self._ledger.add(snapshot.step)
            self._snapshots[snapshot.step] = snapshot

    def quiet(self, step: int) -> None:
        for grown in self._ledger.quiet(step):
            snapshot = self._snapshots[grown]
            if model_part.not_finite(snapshot.replica, snapshot.own):
                self._drop(grown)

    def trouble(self, first_step: int) -> None:
        self._drop(*self._ledger.trouble(first_step))

    def held(self) -> tuple[int, ...]:
        return self._ledger.healthy()

    def fetch(self, step: int) -> Snapshot:
        if step not in self.held():
            raise not_held(step, self.held())
        return self._snapshots[step]

    def agreed(self, step: int) -> None:
        self._drop(*self._ledger.agreed(step))

    def close(self) -> None:
        self._drop(*self._snapshots)

    def _drop(self, *steps: int) -> None:
        for step in steps:
            self._ledger.remove(step)
            self._snapshots.pop(step, None)


class UserStore:
    """The script saves and loads its own checkpoints; which of them are healthy is told here."""

    captures = False

    def __init__(self, save: Callable[[int], Any], load: Callable[[int], Any], keep: int, quiet: int) -> None:
        self._save = save
        self._load = load
        self._ledger = Ledger(keep, quiet)

    def has_room(self) -> bool:
        return self._ledger.has_room()

    def keep(self, snapshot: Snapshot) -> None:
        if self.has_room():
            self._asked("save", self._save, snapshot.step)
            self._ledger.add(snapshot.step)

    def quiet(self, step: int) -> None:
        self._ledger.quiet(step)

    def trouble(self, first_step: int) -> None:
        self._ledger.trouble(first_step)

    def held(self) -> tuple[int, ...]:
        return self._ledger.healthy()

    def fetch(self, step: int) -> Snapshot:
        """Has the script load it. The snapshot is empty: nothing is left to put back."""
        if step not in self.held():
            raise not_held(step, self.held())
        self._asked("load", self._load, step)
        return Snapshot(step)

    def agreed(self, step: int) -> None:
        self._ledger.agreed(step)

    def close(self) -> None:
        """Its files are the script's own."""

    def _asked(self, name: str, function: Callable[[int], Any], step: int) -> None:
        try:
            function(step)
        except Exception as error:
            raise CheckpointError(
                f"`{name}(step)` should {name} the script's own checkpoint. Found `{name}({step})` to raise "
                f"{type(error).__name__}: {error}. Mend it, or let unisono keep checkpoints itself."
            ) from error


def not_held(step: int, held: tuple[int, ...]) -> CheckpointError:
    known = ", ".join(map(str, held)) or "none"
    return CheckpointError(
        f"A checkpoint should be healthy to be used. Found no such one of step {step}; there is {known}."
    )
