"""The runs below one place. A run is asked for by its id, which is looked up and never becomes part of a path."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from unisono.common.terminal import plain
from unisono.records.runfile.lines import RUN_FILE, AnyPath, locate
from unisono.show.live_server.run_headers import RunHeader, RunHeaders

DEEPEST = 3
"""Folders below the named one: a run, a group of ranks in it, a further model in that."""

MOST_FOLDERS = 5_000
FRESH_SECONDS = 1.0
"""How long one look through the folders holds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run on the shelf."""

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
