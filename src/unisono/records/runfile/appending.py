"""A file that grows by whole pieces, or not at all, and that one process at a time may hold."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

from unisono.common.errors import RunFileError, RunInUse
from unisono.records import from_line
from unisono.records.runfile.lines import LINE_LIMIT

if sys.platform != "win32":
    import fcntl

START_OF_OURS = b'{"type":'
CHUNK = 65_536


class AppendedFile:
    """Opened for appending, its torn tail repaired. Every method may raise `OSError`."""

    def __init__(self, path: Path) -> None:
        self._torn = False
        self._whole_bytes = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            _lock(self._fd, path)
            _repair(self._fd, path)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def empty(self) -> bool:
        return os.fstat(self._fd).st_size == 0

    @property
    def deleted(self) -> bool:
        try:
            return os.fstat(self._fd).st_nlink == 0
        except OSError:
            return True

    def append(self, data: bytes) -> None:
        """Add all of `data` in a single write, or raise and leave nothing of it behind."""
        if self._torn:
            self._trim()
        self._whole_bytes = os.fstat(self._fd).st_size
        written = os.write(self._fd, data)
        if written < len(data):
            self._torn = True
            with contextlib.suppress(OSError):
                self._trim()
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")

    def _trim(self) -> None:
        if os.fstat(self._fd).st_size > self._whole_bytes:
            os.ftruncate(self._fd, self._whole_bytes)
        self._torn = False

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _lock(fd: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunInUse(
            f"A run should have one writer. Found another live process writing `{path}`. Name another run directory."
        ) from None
    except OSError:
        # Some network file systems know no locks; a run there is better than none.
        return


def _repair(fd: int, path: Path) -> None:
    size = os.fstat(fd).st_size
    _refuse_foreign(_read_at(fd, 0, min(size, len(START_OF_OURS))), path)
    end = _end_of_last_line(fd, size)
    if end == size:
        return
    if size - end < LINE_LIMIT and _is_whole_record(_read_at(fd, end, size - end)):
        os.write(fd, b"\n")
    else:
        os.ftruncate(fd, end)


def _refuse_foreign(start: bytes, path: Path) -> None:
    zeroed_by_power_loss = not start.strip(b"\0")
    if not zeroed_by_power_loss and not START_OF_OURS.startswith(start):
        raise RunFileError(
            f"A run is only added to a file that unisono began. Found other content in `{path}`, left as it is. "
            "Name another run directory."
        )


def _end_of_last_line(fd: int, size: int) -> int:
    for start in range((size - 1) // CHUNK * CHUNK, -1, -CHUNK):
        newline = _read_at(fd, start, min(CHUNK, size - start)).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
    return 0


def _is_whole_record(line: bytes) -> bool:
    try:
        from_line(line.decode("utf-8"))
    except ValueError:
        return False
    return True


def _read_at(fd: int, offset: int, length: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, length)
