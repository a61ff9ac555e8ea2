"""The end of a file that somebody else writes: read line by line as it grows, and anew when it is another file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from unisono.records import FORMAT, Record, RunRecord
from unisono.records.known_attempts import KnownAttempts
from unisono.records.runfile.lines import LINE_LIMIT

BITE = 131_072
"""Bytes read at a time: a long file must not keep the page waiting."""

REMEMBERED = 512
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the file was read."""

    there: bool = False
    position: int = 0
    size: int = 0
    modified: float = 0.0
    unreadable: int = 0
    """Lines."""

    newer_format: int = 0
    """The format of a file that this version cannot read; 0 for all others."""

    more: bool = False
    """Another look would give more at once."""


@dataclass(frozen=True, slots=True)
class Bite:
    """What one look at the file gave."""

    standing: Standing
    records: tuple[Record, ...] = ()
    anew: bool = False
    """This is another file than before, or it was written over: what was read earlier no longer counts."""


class Tail:
    """Reads complete lines only: a torn last one is waited for. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._standing = Standing()
        self._forget()

    def _forget(self) -> None:
        self._position = self._unreadable = self._newer_format = 0
        self._beginning = b""
        self._run: str | None = None
        self._attempts = KnownAttempts()
        self._skipping = False

    def bite(self) -> Bite:
        """Never raises; a file that cannot be read is not there."""
        try:
            with opened(self._path) as file:
                bite = self._look(file, os.fstat(file))
        except OSError:
            self._seen = self._seen[:2]
            bite = Bite(replace(self._standing, there=False, more=False))
        self._standing = bite.standing
        return bite

    def _look(self, file: int, facts: os.stat_result) -> Bite:
        seen = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if seen == self._seen and not self._standing.more:
            return Bite(self._standing)
        anew = self._position > 0 and self._is_another(file, facts)
        if anew:
            self._forget()
        self._seen = seen
        before = self._position
        records = tuple(self._records(self._next_lines(file)))
        if len(self._beginning) < REMEMBERED:
            self._beginning = os.pread(file, min(REMEMBERED, self._position), 0)
        more = before < self._position < facts.st_size
        counts = (self._position, facts.st_size, facts.st_mtime, self._unreadable, self._newer_format)
        return Bite(Standing(True, *counts, more), records, anew)

    def _is_another(self, file: int, facts: os.stat_result) -> bool:
        """An inode's number alone does not tell: that of a deleted file is given to the next one."""
        return (
            self._seen[:2] != (facts.st_dev, facts.st_ino)
            or facts.st_size < self._position
            or os.pread(file, len(self._beginning), 0) != self._beginning
        )

    def _next_lines(self, file: int) -> bytes:
        """Whole lines from the position on, which then stands behind them."""
        start, content = self._position, os.pread(file, BITE, self._position)
        if self._skipping:
            self._skip(content)
            return b""
        end = content.rfind(b"\n") + 1
        if not end and len(content) == BITE:
            content = os.pread(file, LINE_LIMIT, start)
            end = content.rfind(b"\n") + 1
            if not end and len(content) == LINE_LIMIT:
                self._unreadable += 1
                self._skip(content)
                return b""
        self._position = start + end
        return content[:end] if start else content[:end].removeprefix(BYTE_ORDER_MARK)

    def _skip(self, content: bytes) -> None:
        """Passes over a line that is too long, piece by piece."""
        end = content.find(b"\n") + 1
        self._position += end or len(content)
        self._skipping = not end

    def _records(self, lines: bytes) -> Iterator[Record]:
        for line in lines.split(b"\n"):
            if not line.strip() or self._newer_format:
                continue
            try:
                record = self._checked(self._attempts.read(line.decode("utf-8")))
            except ValueError:
                self._unreadable += 1
            else:
                if record is not None:
                    yield record

    def _checked(self, record: Record | None) -> Record | None:
        if isinstance(record, RunRecord):
            if record.format > FORMAT:
                self._newer_format = record.format
                return None
            self._run = record.run if self._run is None else self._run
            if record.run != self._run:
                raise ValueError("is of another run")
        return record


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A regular file, opened without waiting; may raise `OSError`.

    Done for each look: that finds a replaced file, and asks a network file system for what is new.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError("is no regular file")
        yield file
    finally:
        os.close(file)
