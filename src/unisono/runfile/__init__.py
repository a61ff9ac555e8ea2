"""Run directories and the files in them: made, written and read."""

from unisono.errors import RunFileError, RunInUse
from unisono.runfile._directory import continue_or_create, new_run_dir
from unisono.runfile._reader import Run, read_run, scan
from unisono.runfile._writer import RunWriter

__all__ = ["Run", "RunFileError", "RunInUse", "RunWriter", "continue_or_create", "new_run_dir", "read_run", "scan"]
