"""Where a run goes: a new directory, or one that is continued."""

from __future__ import annotations

import contextlib
import os
import re
import time
from itertools import count
from pathlib import Path

from unisono.records.runfile.lines import RUN_FILE, AnyPath, lines_of

RUNS = "unisono-runs"
"""Where runs go unless a place is named."""

LONGEST_NAME = 60
ATTEMPT = re.compile(rb'\{"type":"\w+","attempt":(\d{1,9})\b')


def new_run_dir(root: AnyPath, script: str, now: float | None = None) -> Path:
    """Make `<root>/<YYYYmmdd-HHMMSS>-<script>`, and let `<root>/latest` point at it. May raise `OSError`."""
    runs, name = _runs_folder(root), _run_name(script, now)
    for number in count(1):
        run_dir = _numbered(runs, name, number)
        with contextlib.suppress(FileExistsError):
            run_dir.mkdir(mode=0o700)
            break
    point_latest_at(run_dir)
    return run_dir


def continue_or_create(run_dir: AnyPath) -> int:
    """Make the directory if need be; the number of the attempt that starts now, from 1. May raise `OSError`."""
    directory = Path(run_dir)
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    if not (directory / RUN_FILE).is_file():
        return 1
    # Every kind of record is asked, not only attempts: the record of a start is lost when the disk was full.
    with (directory / RUN_FILE).open("rb") as file:
        starts = (ATTEMPT.match(line) for line in lines_of(file) if line)
        return 1 + max((int(start[1]) for start in starts if start), default=0)


def _plain_stem(script: str) -> str:
    stem = Path(script).name.removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:LONGEST_NAME].strip(".-") or "run"


def _runs_folder(root: AnyPath) -> Path:
    runs = Path(root)
    runs.parent.mkdir(parents=True, exist_ok=True)
    runs.mkdir(mode=0o700, exist_ok=True)
    _hide_from_git(runs)
    return runs


def _run_name(script: str, now: float | None) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(now)) + f"-{_plain_stem(script)}"


def _numbered(runs: Path, name: str, number: int) -> Path:
    return runs / (name if number == 1 else f"{name}-{number}")


def _hide_from_git(runs: Path) -> None:
    with contextlib.suppress(OSError), (runs / ".gitignore").open("x") as file:
        file.write("*\n")


def point_latest_at(run_dir: Path) -> None:
    """Failures are ignored: the link is a convenience."""
    link = run_dir.with_name(f".latest-{os.getpid()}")
    with contextlib.suppress(OSError):
        link.symlink_to(run_dir.name, target_is_directory=True)
        link.replace(run_dir.with_name("latest"))
    with contextlib.suppress(OSError):
        link.unlink()
