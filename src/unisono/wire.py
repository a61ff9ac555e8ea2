"""Local signals as bytes: fixed fields first, each with a bit that says whether it is known, then the lists."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

from unisono.signals import LocalSignal

_HINTS = get_type_hints(LocalSignal)
_LISTS = [field.name for field in fields(LocalSignal) if _HINTS[field.name] == tuple[float, ...]]
_NAMES = [field.name for field in fields(LocalSignal) if field.name not in _LISTS]
_CODES = {int: "q", int | None: "q", float: "d", float | None: "d", bool: "?"}
_FIXED = struct.Struct(f"<Q{len(_LISTS)}I" + "".join(_CODES[_HINTS[name]] for name in _NAMES))


def pack(signal: LocalSignal) -> bytes:
    values = [getattr(signal, name) for name in _NAMES]
    known = sum(1 << place for place, value in enumerate(values) if value is not None)
    lists = [getattr(signal, name) for name in _LISTS]
    head = _FIXED.pack(known, *map(len, lists), *(0 if value is None else value for value in values))
    return head + b"".join(struct.pack(f"<{len(numbers)}d", *numbers) for numbers in lists)


def unpack(message: bytes) -> Iterator[LocalSignal]:
    """The signals packed one after the other in `message`; raises struct.error on a torn one."""
    at = 0
    while at < len(message):
        known, *rest = _FIXED.unpack_from(message, at)
        lengths, values = rest[: len(_LISTS)], rest[len(_LISTS) :]
        at += _FIXED.size
        content: dict[str, Any] = {
            name: value if known >> place & 1 else None
            for place, (name, value) in enumerate(zip(_NAMES, values, strict=True))
        }
        for name, length in zip(_LISTS, lengths, strict=True):
            content[name] = struct.unpack_from(f"<{length}d", message, at)
            at += 8 * length
        yield LocalSignal(**content)
