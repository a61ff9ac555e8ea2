"""What a run's file tells at a glance: its first line and its last ones."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from unisono.records import RunRecord, from_line
from unisono.records.runfile.lines import LINE_LIMIT
from unisono.show.live_server.tail import opened

FIRST_LINE = 4_096
TAILS = (16_384, 2 * LINE_LIMIT)
"""Bytes from the end: most lines are short, but with many ranks a single one may be as long as the limit."""

START_OF_LINE = re.compile(rb'\{"type":"(\w+)","attempt":\d{1,9}(?:,"step":(\d{1,15})\b)?')


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What the list says of a run."""

    started: float
    modified: float
    script: str = ""
    step: int | None = None
    """The last one written."""

    ended: bool = False


class RunHeaders:
    """Kept until the file changes. For one thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[tuple[int, ...], RunHeader]] = {}

    def of(self, path: Path) -> RunHeader:
        """May raise `OSError`."""
        facts = path.stat()
        seen = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if path not in self._kept or self._kept[path][0] != seen:
            with opened(path) as file:
                self._kept[path] = (seen, _run_header(file, facts))
        return self._kept[path][1]


def _run_header(file: int, facts: os.stat_result) -> RunHeader:
    header = _header(os.pread(file, FIRST_LINE, 0).partition(b"\n")[0])
    last = _last_lines(file, facts.st_size)
    steps = [line[2] for line in last if line[1] in (b"step", b"end") and line[2]]
    return RunHeader(
        started=facts.st_mtime if header is None else header.time,
        modified=facts.st_mtime,
        script="" if header is None else header.script,
        step=int(steps[-1]) if steps else None,
        ended=bool(last) and last[-1][1] == b"end",
    )


def _header(line: bytes) -> RunRecord | None:
    try:
        record = from_line(line.decode("utf-8"))
    except ValueError:
        return None
    return record if isinstance(record, RunRecord) else None


def _last_lines(file: int, size: int) -> list[re.Match[bytes]]:
    """The beginnings of the last complete lines."""
    for length in TAILS:
        lines = os.pread(file, length, max(size - length, 0)).split(b"\n")
        complete = lines[:-1] if length >= size else lines[1:-1]
        found = [start for line in complete if (start := START_OF_LINE.match(line))]
        if found or length >= size:
            return found
    return []
