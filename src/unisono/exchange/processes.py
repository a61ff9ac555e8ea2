"""Whether a process of this machine still lives: one that was killed leaves no word."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

PROC = Path("/proc")


def own_process() -> dict[str, str]:
    """What others on this machine need in order to know this process again; empty where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        _, started = _state(os.getpid())
        return {"place": _place(), "pid": str(os.getpid()), "started": started}
    return {}


def is_seen(process: dict[str, Any]) -> bool:
    """Whether it runs where this process would see it end."""
    return bool(process) and process.get("place") == own_process().get("place") and not is_gone(process)


def is_gone(process: dict[str, Any]) -> bool:
    """Of one that was seen: it has ended, or its number belongs to another one now."""
    try:
        state, started = _state(int(process["pid"]))
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, ValueError, KeyError):
        return False
    return state in "ZX" or started != process["started"]


def _state(pid: int) -> tuple[str, str]:
    """State and start time. The program's name, in brackets before them, may hold anything."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError(f"no state of process {pid}")
    return fields[0], fields[19]


def _place(boot: Path = PROC / "sys/kernel/random/boot_id") -> str:
    """The machine since it was started, and the numbering of processes in this container."""
    return f"{boot.read_text().strip()} {os.readlink(PROC / 'self/ns/pid')}"
