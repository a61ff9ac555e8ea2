"""Hears every data-parallel worker before all-reduce, and tells what is wrong, on which rank, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "attach", "every", "sinks", "within_budget"]

if TYPE_CHECKING:
    from unisono import sinks
    from unisono.attaching import attach
    from unisono.schedule import every, within_budget

_HOMES = {"attach": "unisono.attaching", "every": "unisono.schedule", "within_budget": "unisono.schedule"}


def __getattr__(name: str) -> Any:
    # torch is imported when it is needed: records, run files and the command line work without it.
    from importlib import import_module

    if name == "sinks":
        return import_module("unisono.sinks")
    if name not in _HOMES:
        raise AttributeError(f"module `unisono` has no attribute `{name}`")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
