"""By which `sys.exit` a process ends: Python keeps nothing of it that would tell at the end.

Put in place early, and so imports little: `sys.exit(main())` takes `exit` before it calls `main`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from typing import NoReturn

from unisono.common.errors import in_one_line

_newest: tuple[int, str, float] | None = None
"""The exit code, what was caught where it was called, and when."""


def note_exits() -> None:
    original = sys.exit
    if getattr(original, "__wrapped__", None) is None:

        @functools.wraps(original)
        def noting_exit(status: object = None, /) -> NoReturn:
            with contextlib.suppress(Exception):
                _note(status)
            original(status)  # type: ignore[arg-type]

        sys.exit = noting_exit


def exit_since(moment: float) -> tuple[int, str] | None:
    """Exit code, and what was caught before; a `sys.exit` from before that moment has been caught itself."""
    return _newest[:2] if _newest is not None and _newest[2] >= moment else None


def _note(status: object) -> None:
    global _newest
    # Python prints anything but a number, and ends with 1.
    code, caught = int(status) if isinstance(status, int) else int(status is not None), sys.exc_info()[1]
    _newest = code, "" if caught is None else in_one_line(caught), time.time()
