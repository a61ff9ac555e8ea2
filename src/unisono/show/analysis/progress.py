"""How far a long file has been read, on a terminal's stderr only."""

from __future__ import annotations

import contextlib
import sys
import time

LOOKED_AT_EVERY = 1_000
FIRST_AFTER, NEXT_AFTER = 0.5, 0.2


class Progress:
    """A line that is written over, and gone in the end."""

    def __init__(self) -> None:
        self._count = 0
        self._due = time.monotonic() + FIRST_AFTER
        self._written = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written:
            _write("\r\x1b[K")

    def advance(self) -> None:
        self._count += 1
        if self._count % LOOKED_AT_EVERY == 0 and time.monotonic() >= self._due and _is_terminal():
            self._due = time.monotonic() + NEXT_AFTER
            self._written = True
            _write(f"\rreading: {self._count:,} records")


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
