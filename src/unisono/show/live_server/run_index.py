"""The runs below one place, each with its header and condition.

A run is asked for by its id, which is looked up and never becomes part of a path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unisono.common.terminal import plain
from unisono.diagnose.heard import LIVE_SECONDS
from unisono.records import EndRecord, Record, RunRecord, from_line
from unisono.records.runfile.lines import LINE_LIMIT, RUN_FILE, AnyPath, locate
from unisono.show.live_server.tail import opened

FIRST_LINE = 4_096
TAILS = (16_384, 2 * LINE_LIMIT)
"""Bytes from the end: most lines are short, but with many ranks a single one may be as long as the limit."""

SAID_OF_AN_END = ("finished", "crashed", "killed")
START_OF_LINE = re.compile(rb'\{"type":"(\w+)","attempt":\d{1,9}(?:,"step":(\d{1,15})\b)?')


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What the list says of a run."""

    started: float
    modified: float
    script: str = ""
    step: int | None = None
    """The last one written."""

    ended: str = ""
    """How, if the last line says that it has."""


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
        ended=_ending(last[-1].string) if last else "",
    )


def _header(line: bytes) -> RunRecord | None:
    record = _record(line)
    return record if isinstance(record, RunRecord) else None


def _ending(line: bytes) -> str:
    record = _record(line)
    return record.ended if isinstance(record, EndRecord) else ""


def _record(line: bytes) -> Record | None:
    try:
        return from_line(line.decode("utf-8"))
    except ValueError:
        return None


def _last_lines(file: int, size: int) -> list[re.Match[bytes]]:
    """The beginnings of the last complete lines."""
    for length in TAILS:
        lines = os.pread(file, length, max(size - length, 0)).split(b"\n")
        complete = lines[:-1] if length >= size else lines[1:-1]
        found = [start for line in complete if (start := START_OF_LINE.match(line))]
        if found or length >= size:
            return found
    return []


DEEPEST = 3
"""Folders below the named one: a run, a group of ranks in it, a further model in that."""

MOST_FOLDERS = 5_000
FRESH_SECONDS = 1.0
"""How long one look through the folders holds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run in the index."""

    id: str
    name: str
    path: Path
    """Of its file."""

    header: RunHeader


class RunIndex:
    """A run, or a folder in which runs are or will be. For any thread.

    Raises `RunFileError` for a place that is neither.
    """

    def __init__(self, place: AnyPath) -> None:
        is_folder = bool(os.fspath(place)) and os.path.isdir(place)
        self._place = Path(place).resolve() if is_folder else locate(place).resolve()
        self._lock = threading.Lock()
        self._run_headers = RunHeaders()
        self._by_id: dict[str, Entry] = {}
        self._entries: list[Entry] = []
        self._looked = float("-inf")

    @property
    def name(self) -> str:
        return plain(str(self._place))

    def entries(self) -> list[Entry]:
        """What was started last comes first."""
        with self._lock:
            if time.monotonic() - self._looked > FRESH_SECONDS:
                self._entries = sorted(self._found(), key=lambda entry: (-entry.header.started, entry.name))
                # What was found once stays known: somebody may be looking at a run that has been deleted since.
                self._by_id |= {entry.id: entry for entry in self._entries}
                self._looked = time.monotonic()
            return self._entries

    def only(self) -> Entry | None:
        """The run that was named, unless further ones lie in its folder."""
        entries = self.entries()
        is_named = len(entries) == 1 and entries[0].path in (self._place, self._place / RUN_FILE)
        return entries[0] if is_named else None

    def find(self, run_id: str) -> Entry | None:
        if run_id not in self._by_id:
            self.entries()
        return self._by_id.get(run_id)

    def _found(self) -> Iterator[Entry]:
        for path in {Path(os.path.realpath(file)) for file in _run_files(self._place)}:
            with contextlib.suppress(OSError):
                yield Entry(_id(path), self._name_of(path), path, self._run_headers.of(path))

    def _name_of(self, path: Path) -> str:
        folder = path.parent if path.name == RUN_FILE else path
        inside = folder != self._place and folder.is_relative_to(self._place)
        return plain(str(folder.relative_to(self._place)) if inside else folder.name) or "run"


def _id(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()


def _run_files(place: Path) -> Iterator[Path]:
    """Folders are entered in order of depth, up to a number: somebody may name the root of a large disk. Behind a link
    only a run is looked for: it may lead in a circle."""
    if not place.is_dir():
        yield place
        return
    folders, entered = deque([(place, 0)]), 0
    while folders and entered < MOST_FOLDERS:
        entered += 1
        folder, depth = folders.popleft()
        for item in _items(folder):
            if item.name == RUN_FILE:
                yield Path(item)
            elif item.is_symlink():
                yield Path(item) / RUN_FILE
            elif depth < DEEPEST and not item.name.startswith(".") and item.is_dir(follow_symlinks=False):
                folders.append((Path(item), depth + 1))


def _items(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            return list(listing)
    except OSError:
        return []


UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


def condition(ended: str, modified: float, now: float) -> tuple[str, str]:
    """One word for programs, a few for people.

    :param ended: How the job ended, if the last line says that it has.
    """
    if ended:
        return "ended", ended if ended in SAID_OF_AN_END else "ended"
    quiet = now - modified
    return ("writing", "running") if quiet < LIVE_SECONDS else ("silent", f"nothing new for {_spoken(quiet)}")


def _spoken(seconds: float) -> str:
    # The page is made anew whenever these words change.
    if seconds < 60:
        return f"{LIVE_SECONDS:.0f} seconds"
    unit, length = next((unit, length) for unit, length in UNITS if seconds >= length)
    number = int(seconds // length)
    return f"{number} {unit}{'s' * (number > 1)}"
