"""Finding a run's file, and walking through its lines without ever holding more than one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

from unisono.common.errors import RunFileError

AnyPath: TypeAlias = str | os.PathLike[str]

RUN_FILE = "run.jsonl"
LINE_LIMIT = 1_000_000
"""Bytes of the longest line, newline included, that is written or read."""


def locate(path: AnyPath) -> Path:
    """The regular file that holds the run `path`, a directory or the file itself."""
    if not os.fspath(path):
        raise RunFileError("A run should be named by its directory or file. Found an empty name. Give its path.")
    found = Path(path)
    try:
        if stat.S_ISDIR(found.stat().st_mode):
            found = found / RUN_FILE
        mode = found.stat().st_mode
    except FileNotFoundError:
        raise RunFileError(_nothing_there(Path(path))) from None
    except (OSError, ValueError) as error:
        raise unreadable(found, error) from None
    if not stat.S_ISREG(mode):
        raise RunFileError(f"A run should be a directory or a regular file. Found `{path}`, which is neither.")
    return found


def unreadable(path: Path, error: Exception) -> RunFileError:
    reason = getattr(error, "strerror", None) or str(error)
    return RunFileError(f"A run should be readable. Found `{path}` ({reason}). Check the path and its permissions.")


def _nothing_there(path: Path) -> str:
    if not path.exists():
        return f"A run should be a directory or its {RUN_FILE}. Found nothing at `{path}`. Check the path."
    inside = sorted(
        (file.parent for file in path.glob(f"*/{RUN_FILE}")), key=lambda run: (run.name != "latest", run.name)
    )
    hint = f"Did you mean `{inside[0]}`?" if inside else "Check the path."
    return f"A run directory should hold {RUN_FILE}. Found none in `{path}`. {hint}"


def lines_of(file: BinaryIO) -> Iterator[bytes | None]:
    """The lines one by one; `None` stands for one over the limit, which is passed over piece by piece."""
    while line := file.readline(LINE_LIMIT + 1):
        if len(line) <= LINE_LIMIT:
            yield line
        else:
            _skip_rest(file, line)
            yield None


def _skip_rest(file: BinaryIO, piece: bytes) -> None:
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(LINE_LIMIT)
