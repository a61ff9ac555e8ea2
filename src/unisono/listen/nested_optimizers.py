"""Optimizers inside each other: some keep another one, and hand its result round only when it has stepped."""

from __future__ import annotations


class NestedOptimizers:
    def __init__(self) -> None:
        self._stepping: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._stepping)

    def enter(self, optimizer: object) -> None:
        """An error may have kept it from ending last time."""
        self._close(optimizer)
        self._stepping.append(id(optimizer))

    def leave(self, optimizer: object) -> bool:
        """Whether this was the outermost one."""
        self._close(optimizer)
        return not self._stepping

    def _close(self, optimizer: object) -> None:
        """Also those inside it."""
        if id(optimizer) in self._stepping:
            del self._stepping[self._stepping.index(id(optimizer)) :]
