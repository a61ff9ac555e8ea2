"""Where a monitor writes: the named run, the run this job has begun before it was restarted, or a new one."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from unisono.errors import RunFileError
from unisono.runfile import new_run_dir, read_run

RUNS = "unisono-runs"


def choose_run_dir(named: str | os.PathLike[str] | None, nth: int, ranks: list[int]) -> Path:
    """The directory of the `nth` monitor (from 0) of this process over the group `ranks`."""
    given = named or os.environ.get("UNISONO_RUN_DIR")
    run = Path(given) if given else _interrupted_run() or new_run_dir(RUNS, script_name())
    if ranks[0] != 0:
        run = run / f"ranks-{ranks[0]}-{ranks[-1]}"
    return run / f"model-{nth + 1}" if nth else run


def launcher() -> str:
    """Names the process that started this rank: it stays the same when torchrun restarts its workers."""
    return f"{socket.gethostname()}:{os.getppid()}"


def script_name() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name if spec is not None else Path(sys.argv[0] or "python").stem


def _interrupted_run() -> Path | None:
    """The latest run, if torchrun restarted us and the same torchrun began it."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    latest = Path(RUNS, "latest")
    try:
        attempts = read_run(latest).attempts
    except RunFileError:
        return None
    return latest.resolve() if attempts and attempts[-1].launcher == launcher() else None
