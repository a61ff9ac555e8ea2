"""Functions of ours that stand between a script and torch: warnings of torch point past them, at the script's line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

HOME = f"{Path(__file__).parents[1]}{os.sep}"
_PASSED_OVER = f"{HOME}<importlib._bootstrap>"
"""Python's `warnings` counts no frame of a file named after both words, so `stacklevel` ends where it should."""

Function = TypeVar("Function", bound=Callable[..., object])


def unseen_by_warnings(function: Function) -> Function:
    """The same function; left as it is where it is not defined in this package."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename.startswith(HOME):
        function.__code__ = code.replace(co_filename=_PASSED_OVER)
    return function
