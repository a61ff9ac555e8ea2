"""Folders and files of checkpoints as they should be: links, pipes and devices are refused."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from unisono.common.whole_file import sync_folder


class CheckpointError(RuntimeError):
    """A checkpoint cannot be taken, kept or used. Nothing has been changed by the attempt to use it."""


def make_folder(path: Path) -> None:
    """Does not make its parents."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        sync_folder(path.parent)
    check_folder(path)


def check_folder(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise CheckpointError(f"A folder of checkpoints should exist. Found no `{path}` ({error.strerror}).") from error
    if not stat.S_ISDIR(mode):
        raise CheckpointError(f"A folder of checkpoints should be a real one. Found `{path}`, a link or a file.")


def read(path: Path, largest: int, *, from_disk: bool = False) -> bytes:
    """All of it, in one reading. `from_disk`: not from what the system remembers of a file just written."""
    try:
        # A pipe would otherwise wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return _content(path, descriptor, largest, from_disk)
        finally:
            os.close(descriptor)
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CheckpointError(f"`{path.name}` should be readable. Found in `{path.parent}`: {reason}.") from error


def _content(path: Path, descriptor: int, largest: int, from_disk: bool) -> bytes:
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode):
        raise CheckpointError(f"`{path.name}` should be a regular file. Found something else in `{path.parent}`.")
    if about.st_size > largest:
        raise CheckpointError(f"`{path.name}` should have at most {largest:,} bytes. Found {about.st_size:,}.")
    if from_disk and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read(largest + 1)
