"""Run directories and the files in them: made, written and read."""

from unisono.common.errors import RunFileError, RunInUse
from unisono.records.runfile.directory import RUNS, continue_or_create, new_run_dir, point_latest_at
from unisono.records.runfile.reader import Run, read_run, scan
from unisono.records.runfile.writer import RunWriter

__all__ = [
    "RUNS",
    "Run",
    "RunFileError",
    "RunInUse",
    "RunWriter",
    "continue_or_create",
    "new_run_dir",
    "point_latest_at",
    "read_run",
    "scan",
]
