"""What stands between unisono's errors and the training thread."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")


class NeverRaises(Protocol):
    closed: bool
    pid: int
    spent: float

    def capturing(self) -> bool: ...
    def failed(self, error: Exception) -> None: ...


Owner = TypeVar("Owner", bound=NeverRaises)


def report(owner: NeverRaises, error: Exception) -> None:
    """Hands an error to its owner, who says it and lets go of what was begun. That may fail as well."""
    with contextlib.suppress(Exception):
        owner.failed(error)


def never_raise_untimed(method: Callable[Concatenate[Owner, P], None]) -> Callable[Concatenate[Owner, P], None]:
    """Keeps a method's errors from its caller, who is timed already."""

    @functools.wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            report(self, error)

    return call  # type: ignore[return-value]


def never_raise(method: Callable[Concatenate[Owner, P], None]) -> Callable[Concatenate[Owner, P], None]:
    """Times a method and keeps its errors from training. Forked children and captured graphs are not heard."""

    @functools.wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.closed or os.getpid() != self.pid:
            return
        began = time.perf_counter()
        try:
            if not self.capturing():
                method(self, *args, **kwargs)
        except Exception as error:
            report(self, error)
        finally:
            self.spent += time.perf_counter() - began

    return call  # type: ignore[return-value]
