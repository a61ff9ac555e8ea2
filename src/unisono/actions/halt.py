"""Stops the job: all workers close the run, then all end with an exit code of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

EXIT_CODE = 17


def halt(close: Callable[[], None], wait_for_all: Callable[[], None]) -> NoReturn:
    """Nobody ends before all have closed: a launcher stops the others when the first process has ended."""
    close()
    wait_for_all()
    raise SystemExit(EXIT_CODE)
