"""Mistakes the user can mend. Each message is one sentence or two: what, the rule, what was found, what to do next."""

from __future__ import annotations


class UserError(ValueError):
    """Shown by the command line as one line, without a traceback."""


class RunFileError(UserError):
    """A run cannot be opened."""


class RunInUse(RunFileError):  # noqa: N818 (a state, not a mistake)
    """Another live process writes this run."""


LONGEST_LINE = 300


def in_one_line(error: BaseException) -> str:
    """Kind and first line of an error."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 3] + "..."
