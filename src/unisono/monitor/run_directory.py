"""Where a monitor writes: the named run, the run this job has begun before it was restarted, or a new one."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import time
from itertools import count
from pathlib import Path

from unisono.common.errors import RunFileError, RunInUse
from unisono.records.runfile import RUNS, RunWriter, new_run_dir, read_run

LOCK_TRIES, LOCK_SECONDS = 10, 0.3
_unnamed = count(1)


def choose_run_dir(named: str | os.PathLike[str] | None, ranks: list[int]) -> Path:
    """The directory for a model trained by `ranks`. Unnamed ones of the same process get folders in the first."""
    if named:
        return Path(named)
    run = _run_of_this_process()
    if ranks[0] != 0:
        run = run / f"ranks-{ranks[0]}-{ranks[-1]}"
    nth = next(_unnamed)
    return run / f"model-{nth}" if nth > 1 else run


def part_of_run(run_dir: Path) -> str:
    """What tells an unnamed model's directory from the process's own, as in `model-2`; empty for the first model."""
    whole = _run_of_this_process().absolute()
    return str(run_dir.relative_to(whole)) if whole in run_dir.parents else ""


def open_writer(run_dir: Path) -> tuple[Path, RunWriter]:
    """The run's writer. A rank that was killed may hold it for a moment; another live job gets a place beside it."""
    for _ in range(LOCK_TRIES):
        try:
            return run_dir, RunWriter(run_dir)
        except RunInUse:
            time.sleep(LOCK_SECONDS)
    for number in count(2):
        beside = run_dir.with_name(f"{run_dir.name}-{number}")
        with contextlib.suppress(RunInUse):
            return beside, RunWriter(beside)
    raise RunInUse(f"No free place beside `{run_dir}`.")


@functools.cache
def _run_of_this_process() -> Path:
    given = os.environ.get("UNISONO_RUN_DIR")
    return Path(given) if given else _interrupted_run() or _new_run()


def launcher() -> str:
    """Names the process that started this rank: it stays the same when torchrun restarts its workers."""
    return f"{socket.gethostname()}:{os.getppid()}"


def script_name() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0] or "python").stem


def _new_run() -> Path:
    try:
        return new_run_dir(RUNS, script_name())
    except OSError:
        # The writer tries again and says why; a place that cannot be written to must not stop training.
        return Path(RUNS, script_name())


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
