"""Hears every data-parallel worker before all-reduce, and tells what is wrong, on which rank, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "attach", "every", "within_budget"]

if TYPE_CHECKING:
    from unisono.attaching import attach
    from unisono.schedule import every, within_budget

_HOMES = {"attach": "unisono.attaching", "every": "unisono.schedule", "within_budget": "unisono.schedule"}


def __getattr__(name: str) -> Any:
    # torch is imported when it is needed: records, run files and the command line work without it.
    if name not in _HOMES:
        raise AttributeError(f"module `unisono` has no attribute `{name}`")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
