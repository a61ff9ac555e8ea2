"""The first line of a run file, written before the command starts: a job of which nothing is heard leaves this much."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from unisono import __version__
from unisono.common.errors import RunInUse
from unisono.records import FORMAT, RunRecord
from unisono.records.runfile import RunWriter
from unisono.records.runfile.lines import RUN_FILE

BEGAN = "UNISONO_RUN_BEGAN"
"""Holds the length of the file before the command started."""

LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "unisono")


def begin_run_file(run_dir: Path, script: str) -> int:
    """Unless it has begun; how long the file is then.

    What goes wrong here goes wrong again, and is told, when there is something to record.
    """
    with contextlib.suppress(RunInUse):
        writer = RunWriter(run_dir)
        if writer.needs_header:
            writer.write(RunRecord(FORMAT, run_dir.name, time.time(), script, __version__))
        writer.close()
    file = run_dir / RUN_FILE
    return file.stat().st_size if file.is_file() else 0


def script_name(command: Sequence[str]) -> str:
    """What the run is called: the first Python file, else the first module that is no launcher, else the command."""
    for argument in command:
        if argument.endswith(".py") and not argument.startswith("-"):
            return Path(argument).stem
    for option, module in pairwise(command):
        if option == "-m" and module not in LAUNCHER_MODULES:
            return module
    return Path(command[0]).name
