"""Output files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from unisono.common.errors import UserError


@contextlib.contextmanager
def whole_file(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `target` to write to; it takes the target's place when the block ends well."""
    final = output_path(target)
    try:
        descriptor, name = tempfile.mkstemp(dir=final.parent, prefix=".unisono-", suffix=final.suffix)
    except OSError as error:
        raise _unwritable(final, error) from None
    os.close(descriptor)
    try:
        yield Path(name)
        _put_in_place(Path(name), final)
    except OSError as error:
        raise _unwritable(final, error) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _put_in_place(temporary: Path, final: Path) -> None:
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(final)


def output_beside(run: Path, target: str | os.PathLike[str]) -> Path:
    """The same as `output_path`, and refuses the file that holds the run."""
    path = output_path(target)
    if path == run.resolve():
        raise UserError(f"A new file should not replace its run. Found `{path}` as both. Name another file.")
    return path


def output_path(target: str | os.PathLike[str]) -> Path:
    """Where `target` really is; links are followed. Raises `UserError` if no file can be put there."""
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
    if not final.parent.is_dir():
        raise UserError(f"An output file should be in a folder that exists. Found no `{final.parent}`. Make it first.")
    return final


def _unwritable(path: str | os.PathLike[str], error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(f"An output file should be writable. Found `{path}` ({reason}). Name another place.")
