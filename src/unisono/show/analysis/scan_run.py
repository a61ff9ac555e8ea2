"""A run file, gone through once: every record is handed to whoever wants to see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from unisono.records import FORMAT, Record, RunRecord
from unisono.records.runfile import read_run, scan
from unisono.show.analysis.progress import Progress


@dataclass(frozen=True, slots=True)
class RunOverview:
    """What the file says about the run as a whole."""

    run: str
    script: str
    started: float | None
    """Seconds since 1970; `None` where the file's first line is lost."""

    unreadable_lines: int


def look_through(path: str | PathLike[str], see: Callable[[Record], None], after: int = 0) -> RunOverview:
    """Goes through a run, given its directory or file. Raises `RunFileError` when there is none.

    :param after: Attempts up to this one are left out.
    """
    header: RunRecord | None = None
    bad, usable = 0, False
    with Progress() as progress:
        for _, record in scan(path):
            progress.advance()
            if record is None:
                bad += 1
            elif getattr(record, "attempt", after + 1) > after:
                if header is None and isinstance(record, RunRecord):
                    header = _understood(record, path)
                usable = usable or record.kind in ("run", "attempt", "step")
                see(record)
    if not usable:
        read_run(path)  # says what is there instead
    if header is None:
        return RunOverview(_folder(path).name, "", None, bad)
    return RunOverview(header.run or _folder(path).name, header.script, header.time, bad)


def _understood(header: RunRecord, path: str | PathLike[str]) -> RunRecord:
    if header.format > FORMAT:
        read_run(path)  # refuses it, and says how to update
    return header


def _folder(path: str | PathLike[str]) -> Path:
    absolute = Path(path).absolute()
    return absolute if absolute.is_dir() else absolute.parent
