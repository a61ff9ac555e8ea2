"""`RankStep` as bytes: fixed fields first, each with a bit that says whether it is known, then the lists."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields, make_dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, get_type_hints

from unisono.listen.messages import RankStep

_HINTS = get_type_hints(RankStep)
_ALL = [field.name for field in fields(RankStep)]
_LISTS = [name for name in _ALL if _HINTS[name] == tuple[float, ...]]
_NAMES = [name for name in _ALL if name not in _LISTS]
_LIST_PLACES = [_ALL.index(name) for name in _LISTS]
_CODES = {int: "q", int | None: "q", float: "d", float | None: "d", bool: "?"}
_FIXED = struct.Struct(f"<Q{len(_LISTS)}I" + "".join(_CODES[_HINTS[name]] for name in _NAMES))
_values, _lists = attrgetter(*_NAMES), attrgetter(*_LISTS)
# The same slots, not frozen: rank 0 makes a signal for every worker, and a frozen one takes twice as long.
_Thawed: type[Any] = make_dataclass("_Thawed", _ALL, slots=True)


def pack(signal: RankStep) -> bytes:
    values, lists = _values(signal), _lists(signal)
    known = sum(1 << place for place, value in enumerate(values) if value is not None)
    head = _FIXED.pack(known, *map(len, lists), *(0 if value is None else value for value in values))
    return head + b"".join(struct.pack(f"<{len(numbers)}d", *numbers) for numbers in lists)


def unpack(message: bytes) -> Iterator[RankStep]:
    """The signals packed one after the other in `message`; raises struct.error on a torn one."""
    at = 0
    while at < len(message):
        known, *rest = _FIXED.unpack_from(message, at)
        lengths, values = rest[: len(_LISTS)], rest[len(_LISTS) :]
        at += _FIXED.size
        for place in _unknown(known):
            values[place] = None
        for place, length in zip(_LIST_PLACES, lengths, strict=True):
            values.insert(place, struct.unpack_from(f"<{length}d", message, at) if length else ())
            at += 8 * length
        signal = _Thawed(*values)
        signal.__class__ = RankStep
        yield signal


@lru_cache(maxsize=256)
def _unknown(known: int) -> tuple[int, ...]:
    return tuple(place for place in range(len(_NAMES)) if not known >> place & 1)
