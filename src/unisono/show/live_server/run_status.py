"""In a few words: how a run is doing, as far as its file tells."""

from __future__ import annotations

SILENT_AFTER = 60.0
"""Seconds without a new line: long steps and checkpoints are no reason to worry yet."""

UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


def condition(ended: bool, modified: float, now: float) -> tuple[str, str]:
    """One word for programs, a few for people.

    :param ended: The last line says that the job has ended in good order.
    """
    if ended:
        return "ended", "ended"
    quiet = now - modified
    return ("writing", "writing") if quiet < SILENT_AFTER else ("silent", f"nothing new for {_spoken(quiet)}")


def _spoken(seconds: float) -> str:
    unit, length = next((unit, length) for unit, length in UNITS if seconds >= length)
    number = int(seconds // length)
    return f"{number} {unit}{'s' * (number > 1)}"
