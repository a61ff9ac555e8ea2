"""What a user asked for when attaching."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unisono.common.schedule import DEFAULT, Schedule
from unisono.records.finding import Finding

if TYPE_CHECKING:
    from unisono.show.sinks.sink import Sink


@dataclass(frozen=True)
class Settings:
    schedule: Schedule = DEFAULT
    run_dir: str | os.PathLike[str] | None = None
    first_step: int = 0
    loader: Any = None
    ignore: tuple[str, ...] = ()
    on_finding: Callable[[Finding], None] | None = None
    sinks: tuple[Sink, ...] = ()
    guard: str = ""
    """What the guard may do, in words."""
