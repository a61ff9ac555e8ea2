"""Text for a terminal: made safe, as wide and as colourful as it may be."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

UNKNOWN_WIDTH = 80
NARROWEST, WIDEST = 40, 120


def width() -> int:
    columns = shutil.get_terminal_size((UNKNOWN_WIDTH, 24)).columns if _is_terminal() else UNKNOWN_WIDTH
    return min(max(columns, NARROWEST), WIDEST)


def lines_of(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Whole words, so that names with hyphens can be copied, behind `first` and then behind `rest`."""
    return wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def colour() -> bool:
    return _is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def table(rows: Sequence[Sequence[object]], aligned: str, widths: Sequence[int] | None = None) -> list[str]:
    """Cells below each other, two spaces between columns.

    :param aligned: `<` or `>` for each column.
    :param widths: Of the columns; what is longer is cut. Otherwise each is as wide as its widest cell.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    wide = widths or [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            f"{cut(cell, width):{side}{width}}" for cell, side, width in zip(row, aligned, wide, strict=True)
        ).rstrip()
        for row in cells
    ]


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def plain(text: str) -> str:
    """One line without escape sequences: everything unprintable is left out, white space becomes a space."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)


def short(path: Path) -> str:
    try:
        return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
    except OSError:
        # The working directory may be gone by the time a run ends.
        return str(path)
