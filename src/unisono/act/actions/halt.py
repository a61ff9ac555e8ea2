"""Stops the job: all workers close the run, then all end with an exit code of their own."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

EXIT_CODE = 17

_halted = False


def halt(close: Callable[[], None], wait_for_all: Callable[[], None]) -> NoReturn:
    """Nobody ends before all have closed: a launcher stops the others when the first process has ended."""
    global _halted
    close()
    wait_for_all()
    _halted = True
    raise SystemExit(EXIT_CODE)


def _end_with_the_code() -> None:
    """Threads of a process group that is still alive abort a process on its way out, often after all work is done."""
    if _halted:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(EXIT_CODE)


# When this module is imported, so that it runs after all that is registered later: monitors, sinks, the user's own.
atexit.register(_end_with_the_code)
