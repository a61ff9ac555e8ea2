"""What a user writes on one line, `NAME:OPTION=VALUE,OPTION=VALUE`, and words for what it should have been."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    value: str
    given: bool
    """There was an `=`, if nothing behind it."""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.given else self.name


def parse(text: str) -> tuple[str, list[Option]]:
    """The name and its options, as written: whoever asks knows which there may be."""
    name, _, rest = text.partition(":")
    options = []
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        options.append(Option(key, value, bool(equals)))
    return name, options


def listed(names: Iterable[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]


def nearest(name: str, known: Sequence[str]) -> str:
    """What may have been meant, or all there is."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean `{near[0]}`?" if near else f"Choose from: {', '.join(known)}."
