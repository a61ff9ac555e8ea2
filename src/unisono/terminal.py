"""Text from run files and the command line, made safe for a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """One line without escape sequences: everything unprintable is left out, white space becomes a space."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
