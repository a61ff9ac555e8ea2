"""A run file, gone through once: every record is handed to whoever wants to see it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from unisono.records import FORMAT, AttemptRecord, EndRecord, Record, RunRecord
from unisono.records.runfile import read_run, scan
from unisono.records.runfile.departures import belonging, departures_beside


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
        for record in _with_departures(path):
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


def _with_departures(path: str | PathLike[str]) -> Iterator[Record | None]:
    """The run's records; at the end of each attempt also what single ranks wrote down about ranks that went."""
    beside = departures_beside(path)
    header: RunRecord | None = None
    attempt: AttemptRecord | None = None
    ended = ""
    for _, record in scan(path):
        if isinstance(record, RunRecord):
            header = header or record
        elif isinstance(record, EndRecord):
            ended = record.ended
        elif isinstance(record, AttemptRecord):
            if attempt is not None:
                yield from belonging(beside, attempt, header, ended)
            attempt, ended = record, ""
        yield record
    if attempt is not None:
        yield from belonging(beside, attempt, header, ended)


def _understood(header: RunRecord, path: str | PathLike[str]) -> RunRecord:
    if header.format > FORMAT:
        read_run(path)  # refuses it, and says how to update
    return header


def _folder(path: str | PathLike[str]) -> Path:
    absolute = Path(path).absolute()
    return absolute if absolute.is_dir() else absolute.parent


LOOKED_AT_EVERY = 1_000
FIRST_AFTER, NEXT_AFTER = 0.5, 0.2


class Progress:
    """A line that is written over, and gone in the end."""

    def __init__(self) -> None:
        self._count = 0
        self._due = time.monotonic() + FIRST_AFTER
        self._written = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written:
            _write("\r\x1b[K")

    def advance(self) -> None:
        self._count += 1
        if self._count % LOOKED_AT_EVERY == 0 and time.monotonic() >= self._due and _is_terminal():
            self._due = time.monotonic() + NEXT_AFTER
            self._written = True
            _write(f"\rreading: {self._count:,} records")


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
