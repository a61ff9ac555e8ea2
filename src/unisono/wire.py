"""Local signals as bytes: fixed fields first, each with a bit that says whether it is known."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

from unisono.signals import LocalSignal

_HINTS = get_type_hints(LocalSignal)
_NAMES = [field.name for field in fields(LocalSignal) if field.name != "squared_norm_G"]
_CODES = {int: "q", int | None: "q", float: "d", float | None: "d", bool: "?"}
_FIXED = struct.Struct("<QI" + "".join(_CODES[_HINTS[name]] for name in _NAMES))


def pack(signal: LocalSignal) -> bytes:
    values = [getattr(signal, name) for name in _NAMES]
    known = sum(1 << place for place, value in enumerate(values) if value is not None)
    groups = signal.squared_norm_G
    head = _FIXED.pack(known, len(groups), *(0 if value is None else value for value in values))
    return head + struct.pack(f"<{len(groups)}d", *groups)


def unpack(message: bytes) -> Iterator[LocalSignal]:
    """The signals packed one after the other in `message`; raises struct.error on a torn one."""
    at = 0
    while at < len(message):
        known, groups, *values = _FIXED.unpack_from(message, at)
        at += _FIXED.size
        norms = struct.unpack_from(f"<{groups}d", message, at)
        at += 8 * groups
        content: dict[str, Any] = {
            name: value if known >> place & 1 else None
            for place, (name, value) in enumerate(zip(_NAMES, values, strict=True))
        }
        yield LocalSignal(**content, squared_norm_G=norms)
