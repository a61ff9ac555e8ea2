"""Attaches to every DistributedDataParallel model a script builds, without a line of it changed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import time
from types import TracebackType
from typing import Any

from unisono.common.console import Console
from unisono.common.unseen_frame import HOME, unseen_by_warnings
from unisono.monitor.noted_exit import note_exits
from unisono.monitor.nothing_heard import ProcessEnd

_monitors: list[Any] = []
_closed_with_the_group: list[Any] = []


def install() -> None:
    """Called once per process, right after torch has been imported."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    note_exits()
    sys.excepthook = _without_our_frames(sys.excepthook)
    _follow(DistributedDataParallel)
    if hasattr(dist, "destroy_process_group"):
        atexit.register(_process_ends)
        dist.destroy_process_group = _after_closing(dist.destroy_process_group, ProcessEnd())


def _follow(cls: type[Any]) -> None:
    original = cls.__init__

    @unseen_by_warnings
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 (it takes the place of DDP's)
        original(self, *args, **kwargs)
        try:
            # Not earlier: most processes that import torch never wrap a model.
            from unisono.monitor.attach import attach

            _monitors[:] = [*(monitor for monitor in _monitors if not monitor.closed), attach(self)]
        except Exception as error:
            if os.environ.get("UNISONO_WEIGHTING") or os.environ.get("UNISONO_GUARD"):
                # Asked for by every worker's environment, and refused on every worker: not to be passed over.
                raise
            Console().say(f"cannot listen ({type(error).__name__}: {error}); training is not affected")

    cls.__init__ = __init__


def _after_closing(original: Any, end: ProcessEnd) -> Any:
    @unseen_by_warnings
    @functools.wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        if group is None:
            end.group_ends()
            while _monitors:
                _closed_with_the_group.append(_monitors.pop())
                _close(_closed_with_the_group[-1])
            # Gloo's destructor deadlocks with its own workers while they let go of the last collective.
            time.sleep(0.2)
        original(group)

    return destroy_process_group


def _process_ends() -> None:
    """What comes after training may fail as well."""
    for monitor in _closed_with_the_group:
        with contextlib.suppress(Exception):
            monitor.tell_of_bad_exit()


def _close(monitor: Any) -> None:
    try:
        monitor.close()
    except Exception as error:
        Console().say(f"could not close ({type(error).__name__}: {error}); training is not affected")


def _without_our_frames(original: Any) -> Any:
    """An error inside `backward` passes through our patch; the traceback is printed as it would be without it."""

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        original(kind, error, _without_ours(trace))

    return excepthook


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    if trace is not None:
        trace.tb_next = _without_ours(trace.tb_next)
    return trace


def _is_ours(trace: TracebackType) -> bool:
    """Also the frame in which `torch.compiler.disable` calls us."""
    file = trace.tb_frame.f_code.co_filename
    called_by_dynamo = file.endswith("eval_frame.py") and trace.tb_next is not None and _is_ours(trace.tb_next)
    return file.startswith(HOME) or called_by_dynamo
