"""Pauses between tries that fail: twice as long each time, up to a longest, and short again after a success."""

from __future__ import annotations


class Backoff:
    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._next = shortest

    def failed(self) -> float:
        """Seconds to wait before the next try."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        return pause

    def succeeded(self) -> None:
        self._next = self._shortest
