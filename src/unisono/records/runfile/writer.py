"""Writing a run file. Whatever happens to the disk is counted and reported, and never reaches the training."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from time import monotonic

from unisono.common.errors import RunFileError
from unisono.records import AttemptRecord, Record, RunRecord, to_line
from unisono.records.runfile.appending import AppendedFile
from unisono.records.runfile.lines import LINE_LIMIT, RUN_FILE, AnyPath

SECONDS_BETWEEN_REOPENINGS = 1.0


class RunWriter:
    """Appends records to one file; for one thread at a time.

    A record is in the file whole or not at all. What cannot be written is dropped and counted, and writing resumes by
    itself when the disk allows it. Headers are kept until they can be written, and repeated if the file was deleted.

    :param path: A `.jsonl` file, or a run directory whose `run.jsonl` is meant.
    """

    def __init__(self, path: AnyPath) -> None:
        self.path = Path(path) if os.fspath(path).endswith(".jsonl") else Path(path) / RUN_FILE
        self.last_error = ""
        self.newest_line = ""
        """Of the record that was handed over last, without its newline; empty where it could not be put into one."""

        self._file: AppendedFile | None = None
        self._closed = False
        self._lost = 0
        self._headers: list[bytes] = []
        self._owed: list[bytes] = []
        self._reopen_after = 0.0
        try:
            self._reopen()
        except RunFileError:
            raise
        except (OSError, ValueError) as error:
            self.last_error = str(error)
        _writers.add(self)

    @property
    def dropped(self) -> int:
        """How many records did not get into the file, so far."""
        return self._lost + len(self._owed)

    @property
    def needs_header(self) -> bool:
        """Whether the file holds nothing yet, so that a `RunRecord` should come first."""
        try:
            return self._file is None or self._file.empty
        except OSError:
            return True

    def write(self, record: Record) -> bool:
        """Whether the record, and every header before it, is now in the file."""
        is_header = isinstance(record, RunRecord | AttemptRecord)
        self.newest_line = ""
        try:
            self.newest_line = to_line(record)
            line = _bytes(self.newest_line, record.kind)
            if is_header:
                self._headers.append(line)
                self._owed.append(line)
            file = self._usable_file()
            file.append(b"".join(self._owed) + (b"" if is_header else line))
        except (OSError, ValueError, TypeError, OverflowError) as error:
            self.last_error = str(error)
            self._lost += not is_header
            return False
        self._owed.clear()
        return True

    def sync(self) -> None:
        """Ask the system to put everything written so far on the disk itself."""
        try:
            if self._file is not None:
                self._file.sync()
        except OSError as error:
            self.last_error = str(error)

    def close(self) -> None:
        self.sync()
        self._let_go()
        self._closed = True

    def _usable_file(self) -> AppendedFile:
        if self._closed:
            raise OSError(f"{self.path} is closed")
        if self._file is None or self._file.deleted:
            if monotonic() < self._reopen_after:
                raise OSError(self.last_error or f"{self.path} was deleted")
            self._let_go()
            return self._reopen()
        return self._file

    def _reopen(self) -> AppendedFile:
        self._reopen_after = monotonic() + SECONDS_BETWEEN_REOPENINGS
        self.path.parent.parent.mkdir(parents=True, exist_ok=True)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self._file = AppendedFile(self.path)
        if self._file.empty:
            self._owed = list(self._headers)
        return self._file

    def _let_go(self) -> None:
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError as error:
            self.last_error = str(error)

    def _leave_to_parent(self) -> None:
        self._let_go()
        self._closed = True


def _bytes(text: str, kind: str) -> bytes:
    line = text.encode("ascii") + b"\n"
    if len(line) > LINE_LIMIT:
        raise ValueError(f"A record should have at most {LINE_LIMIT} bytes. Found {len(line)} for a {kind}.")
    return line


# A forked data loader would otherwise hold the lock after its parent has died, and block the restart of the job.
def _leave_all_to_parent() -> None:
    for writer in tuple(_writers):
        writer._leave_to_parent()


_writers: weakref.WeakSet[RunWriter] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)
