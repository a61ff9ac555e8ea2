"""What single ranks wrote down about ranks that went, beside the run file: its writer may have gone itself."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from unisono.records.lines import from_line
from unisono.records.run import AttemptRecord, DepartureRecord, RunRecord
from unisono.records.runfile.lines import RUN_FILE, AnyPath

TAIL = 16_384
"""Bytes at the end of a rank's file: its last steps come first, who went comes last."""

MOST_FILES = 10_000
RANK_FILE = re.compile(r"rank-[0-9]+\.jsonl")

SAME_CLOCK, OTHER_CLOCK = 5.0, 60.0
"""Seconds by which a departure may seem older than its run, told on the host of the run's writer and on another."""


def departures_beside(path: AnyPath) -> list[DepartureRecord]:
    """Of a run's directory, or of its `run.jsonl`, in order of attempts."""
    given = Path(path)
    folder = given.parent if given.name == RUN_FILE else given
    found: list[DepartureRecord] = []
    with contextlib.suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if RANK_FILE.fullmatch(name))
        for name in names[:MOST_FILES]:
            found += _departures(folder / name)
    return sorted(found, key=lambda one: one.attempt)


def belonging(
    found: Iterable[DepartureRecord], attempt: AttemptRecord, header: RunRecord | None, ended: str
) -> list[DepartureRecord]:
    """Those of this attempt that still hold.

    :param ended: As in its `EndRecord`; empty without one. Whoever has finished well was only silent.
    """
    outlived = "silence" if ended == "finished" else ""
    return [one for one in found if one.how != outlived and _belongs(one, attempt, header)]


def _belongs(departure: DepartureRecord, attempt: AttemptRecord, header: RunRecord | None) -> bool:
    """Not of a job that had written into the same directory before."""
    hosts = {worker.rank: worker.host for worker in attempt.workers}
    if departure.attempt != attempt.attempt or not hosts.keys() >= {departure.rank, departure.told_by}:
        return False
    same_clock = hosts[departure.told_by] == attempt.workers[0].host
    began = attempt.time if header is None else header.time
    return departure.time >= began - (SAME_CLOCK if same_clock and header is not None else OTHER_CLOCK)


def _departures(path: Path) -> Iterator[DepartureRecord]:
    with contextlib.suppress(OSError):
        if not path.is_file():
            return
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read(TAIL).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                record = from_line(line.decode("utf-8")) if line.startswith(b'{"type":"departure"') else None
                if isinstance(record, DepartureRecord):
                    yield record
