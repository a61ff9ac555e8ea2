"""Errors that are unisono's own: what is said of them, and how one stays one."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unisono.common.terminal import cut, plain

LONGEST = 160


def shielded(complain: Callable[[str], None], what: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` returns, or `None` where it failed: then that is said, and everything else goes on.

    :param what: Who failed, as in `the diagnosis`.
    """
    try:
        return work(*arguments)
    except Exception as error:
        complain(f"{what} failed ({described(error)}); training is not affected")
        return None


def described(error: BaseException) -> str:
    """`ZeroDivisionError: division by zero, in un503_slow_worker.py line 71`: enough to find it in the sources."""
    told = cut(plain(f"{type(error).__name__}: {error}"), LONGEST)
    frames = traceback.extract_tb(error.__traceback__, -1) if error.__traceback__ is not None else []
    place = f", in {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return told + place
