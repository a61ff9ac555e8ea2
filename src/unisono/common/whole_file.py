"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from unisono.common.errors import UserError

RUN_BEGINS = b'{"type":"run"'


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, for this user only, which takes its place when the block ends well and is on the disk then.

    Its `name` is the temporary one beside `path`, for those who write by name.
    """
    # Several hosts may write the same file at the same time; a link in its place is not followed.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "rb+", opener=_new_file) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _new_file(path: str, flags: int) -> int:
    """Opened once, by the call that makes it: nobody can put a link in its place in between."""
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def sync_folder(path: Path) -> None:
    """Names are safe on the disk only when their folder is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `target` to write to by name; what goes wrong is the user's to mend."""
    final = output_path(target)
    try:
        with replacing(final) as file:
            yield Path(file.name)
    except OSError as error:
        raise _unwritable(final, error) from None


def output_beside(run: Path, target: str | os.PathLike[str]) -> Path:
    """The same as `output_path`, and refuses the file that holds the run."""
    try:
        same = bool(os.fspath(target)) and os.path.realpath(target) == os.path.realpath(run)
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from None
    if same:
        raise UserError(f"A new file should not replace its run. Found `{target}` as both. Name another file.")
    return output_path(target)


def output_path(target: str | os.PathLike[str]) -> Path:
    """Where `target` really is; links are followed. Raises `UserError` if no file can be put there, or a run is."""
    if not os.fspath(target):
        raise UserError("An output file should have a name. Found an empty one. Give its path.")
    try:
        final = Path(os.path.realpath(target))
        mode = final.lstat().st_mode if os.path.lexists(final) else stat.S_IFREG
    except (OSError, ValueError) as error:
        raise _unwritable(target, error) from None
    # Renaming onto a device such as /dev/null would remove it.
    if not stat.S_ISREG(mode):
        raise UserError(f"An output file should be a regular file. Found `{target}`, which is not. Name another.")
    if _holds_a_run(final):
        raise UserError(f"A new file should not replace a run. Found one at `{target}`. Name another file.")
    if not final.parent.is_dir():
        raise UserError(f"An output file should be in a folder that exists. Found no `{final.parent}`. Make it first.")
    return final


def _holds_a_run(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(RUN_BEGINS)) == RUN_BEGINS
    except OSError:
        return False


def _unwritable(path: str | os.PathLike[str], error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(f"An output file should be writable. Found `{path}` ({reason}). Name another place.")
