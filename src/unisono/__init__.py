"""Hears every data-parallel worker before all-reduce, and tells what is wrong, on which rank, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "Checkpoints",
    "__version__",
    "attach",
    "every",
    "guard",
    "microbatches",
    "sinks",
    "weightings",
    "within_budget",
]

if TYPE_CHECKING:
    from unisono import sinks, weightings
    from unisono.act.guard.options import Checkpoints, guard
    from unisono.act.microbatching import microbatches
    from unisono.common.schedule import every, within_budget
    from unisono.monitor.attach import attach

_MODULES = ("sinks", "weightings")
_HOMES = {
    "Checkpoints": "unisono.act.guard.options",
    "attach": "unisono.monitor.attach",
    "every": "unisono.common.schedule",
    "guard": "unisono.act.guard.options",
    "microbatches": "unisono.act.microbatching",
    "within_budget": "unisono.common.schedule",
}


def __getattr__(name: str) -> Any:
    # torch is imported when it is needed: records, run files and the command line work without it.
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"unisono.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module `unisono` has no attribute `{name}`")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
