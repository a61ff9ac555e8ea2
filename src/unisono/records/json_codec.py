"""Frozen dataclasses as strict JSON objects: how each type of field is written and read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, make_dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

LEAST_INT, MOST_INT = -(2**63), 2**63 - 1
MOST_COUNTED = 2**53
"""No step, rank or count is larger, and floats still tell it from the next; the step before the first is -1."""

LARGEST = 10**308
LEAST, MOST = 1e-75, 1e75
"""Numbers of training beyond these are as good as zero and infinite, and are read as such: no gradient of 32 bits comes
near them, and fourth powers between them are still numbers."""

LATEST_TIME = 1e11
NO_LIST = "should be a list"
NON_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}

encode_plain = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Codec(NamedTuple):
    """How the values of one type are written to JSON text and read from parsed JSON."""

    write: Callable[[Any], str]
    read: Callable[[Any], Any]
    usual: type | None = None
    """Usual numbers of this very type need no reading: most of a run file is such, and a call for each takes long."""


def _quoted_if_not_finite(number: str) -> str:
    return f'"{number}"' if "n" in number else number


def _write_int(value: int) -> str:
    return f"{value:d}"


def _write_bool(value: bool) -> str:
    return "true" if value else "false"


def _write_float(value: float) -> str:
    return _quoted_if_not_finite(f"{value:.9g}")


# Nine digits would place a Unix time only within ten seconds.
def _write_time(value: float) -> str:
    return _quoted_if_not_finite(repr(round(float(value), 6)))


def _write_floats(values: tuple[float | None, ...]) -> str:
    try:
        text = _pattern(len(values)) % values
    except TypeError:
        text = "n"
    if "n" in text:
        text = ",".join("null" if value is None else _write_float(value) for value in values)
    return f"[{text}]"


# One formatting call for a whole row is several times faster than one per number.
@lru_cache(maxsize=64)
def _pattern(length: int) -> str:
    return ",".join(["%.9g"] * length)


def _write_numbers(content: Mapping[str, float]) -> str:
    return "{" + ",".join(f"{encode_plain(name)}:{_write_float(value)}" for name, value in content.items()) + "}"


def _write_rows(rows: tuple[tuple[float | None, ...], ...]) -> str:
    return f"[{','.join(map(_write_floats, rows))}]"


def _read_int(value: Any) -> int:
    if type(value) is int and -1 <= value <= MOST_COUNTED:
        return value
    raise ValueError("should be a whole number from -1 to 2^53")


def _read_index(value: Any) -> int:
    if type(value) is int and LEAST_INT <= value <= MOST_INT:
        return value
    raise ValueError("should be a whole number of at most 64 bits")


def _read_bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise ValueError("should be true or false")


def _read_float(value: Any) -> float:
    if type(value) is float:
        return _usable(value)
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return _usable(float(value))
    if type(value) is str and value in NON_FINITE:
        return NON_FINITE[value]
    raise ValueError("should be a number")


def _usable(value: float) -> float:
    if -LEAST < value < LEAST:
        return math.copysign(0.0, value)
    if -MOST < value < MOST:
        return value
    return math.copysign(math.inf, value)


def _read_time(value: Any) -> float:
    seconds = _read_float(value)
    if -LATEST_TIME < seconds < LATEST_TIME:
        return seconds
    raise ValueError("should be a Unix time in seconds")


# Lone surrogates are valid JSON, but no file or terminal takes them.
def _read_text(value: Any) -> str:
    if type(value) is str:
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    raise ValueError("should be a text")


def _read_texts(values: Any) -> tuple[str, ...]:
    if set(map(type, _checked_list(values))) == {str} and "".join(values).isascii():
        return tuple(values)
    return tuple([_read_text(value) for value in values])


def _checked_list(values: Any) -> list[Any]:
    if type(values) is list:
        return values
    raise ValueError(NO_LIST)


# The usual values are let through without a call for each: most of a run file is lists of floats.
def _read_floats(row: Any) -> tuple[float | None, ...]:
    if type(row) is not list:
        raise ValueError(NO_LIST)
    for value in row:
        if type(value) is not float or not (LEAST < value < MOST or -MOST < value < -LEAST or value == 0.0):
            return tuple([v if v is None or (type(v) is float and LEAST < v < MOST) else _read_float(v) for v in row])
    return tuple(row)


def _read_rows(rows: Any) -> tuple[tuple[Any, ...], ...]:
    for row in _checked_list(rows):
        if type(row) is not list:
            raise ValueError("should be a list of lists")
    for value in chain.from_iterable(rows):
        if type(value) is not float or not (LEAST < value < MOST or -MOST < value < -LEAST or value == 0.0):
            return tuple([_read_floats(row) for row in rows])
    return tuple(map(tuple, rows))


def _read_bools(row: Any) -> tuple[bool | None, ...]:
    if set(map(type, _checked_list(row))) == {bool}:
        return tuple(row)
    return tuple([None if value is None else _read_bool(value) for value in row])


def _read_ints(row: Any) -> tuple[int | None, ...]:
    if set(map(type, _checked_list(row))) == {int} and min(row) >= 0 and max(row) <= MOST_COUNTED:
        return tuple(row)
    return tuple([None if value is None else _read_int(value) for value in row])


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def each(read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda values: tuple([read(value) for value in _checked_list(values)])


def _mapping_of(read: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    def read_mapping(content: Any) -> dict[str, Any]:
        if type(content) is dict:
            return {_read_text(key): read(value) for key, value in content.items()}
        raise ValueError("should be a JSON object")

    return read_mapping


SPECIAL = {
    "time": Codec(_write_time, _read_time),
    "indices": Codec(encode_plain, each(_or_none(_read_index))),
}
"""By the name of the field: what its type alone does not tell."""

CODECS: dict[object, Codec] = {
    int: Codec(_write_int, _read_int),
    int | None: Codec(_write_int, _or_none(_read_int)),
    float: Codec(_write_float, _read_float, usual=float),
    float | None: Codec(_write_float, _or_none(_read_float), usual=float),
    bool: Codec(_write_bool, _read_bool, usual=bool),
    bool | None: Codec(_write_bool, _or_none(_read_bool), usual=bool),
    str: Codec(encode_plain, _read_text),
    tuple[str, ...]: Codec(encode_plain, _read_texts),
    tuple[int | None, ...]: Codec(encode_plain, _read_ints),
    tuple[bool | None, ...]: Codec(encode_plain, _read_bools),
    tuple[float | None, ...]: Codec(_write_floats, _read_floats),
    tuple[tuple[float | None, ...], ...]: Codec(_write_rows, _read_rows),
    Mapping[str, float]: Codec(_write_numbers, _mapping_of(_read_float)),
    Mapping[str, str]: Codec(encode_plain, _mapping_of(_read_text)),
    Mapping[str, tuple[str | None, ...]]: Codec(encode_plain, _mapping_of(each(_or_none(_read_text)))),
    Mapping[str, tuple[int | None, ...]]: Codec(encode_plain, _mapping_of(_read_ints)),
}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _thawed(cls: type[Any]) -> type[Any]:
    """The same slots, not frozen: setting the many fields of a frozen class takes five times as long."""
    return make_dataclass(cls.__name__, [f.name for f in fields(cls)], slots=True)


class Form:
    """The JSON object of one dataclass. Fields at their default are left out; unknown keys are ignored."""

    def __init__(self, cls: type[Any], extra: Mapping[object, Codec] | None = None) -> None:
        known = CODECS | dict(extra or {})
        hints = get_type_hints(cls)
        codecs = {f.name: SPECIAL.get(f.name) or known[hints[f.name]] for f in fields(cls)}
        self._cls, self._thawed = cls, _thawed(cls)
        self._values = attrgetter(*codecs)
        self._writers = [(f',"{f.name}":', _default(f), codecs[f.name].write) for f in fields(cls)]
        self._readers = {name: (at, codec.usual, codec.read) for at, (name, codec) in enumerate(codecs.items())}
        self._defaults = [f.default for f in fields(cls)]
        self._fresh = [(at, f) for at, f in enumerate(fields(cls)) if f.default_factory is not MISSING]
        self._required = {f.name for f in fields(cls) if _default(f) is MISSING}

    def write(self, record: Any, start: str = "") -> str:
        """The object as text, its first members given as `start`."""
        parts = [start]
        for value, (key, default, write) in zip(self._values(record), self._writers, strict=True):
            if value is not default and value != default:
                parts += key, write(value)
        return "{" + "".join(parts).removeprefix(",") + "}"

    def read(self, content: Any) -> Any:
        """The record; `ValueError` says which field is bad."""
        if type(content) is not dict:
            raise ValueError("should be a JSON object")
        if not content.keys() >= self._required:
            raise ValueError(f"lacks {', '.join(sorted(self._required - content.keys()))}")
        record = self._thawed(*self._checked(content))
        record.__class__ = self._cls
        return record

    def _checked(self, content: dict[str, Any]) -> list[Any]:
        """The values of all fields, in their order."""
        values = self._defaults.copy()
        for at, own in self._fresh:
            values[at] = _default(own)
        readers: dict[str, tuple[int, Any, Callable[[Any], Any]]] = self._readers
        least, most = LEAST, MOST
        key = ""
        try:
            for key, value in content.items():
                if key in readers:
                    at, usual, read = readers[key]
                    # True is such a number, too; what is not, its reader looks at.
                    values[at] = value if type(value) is usual and least < value < most else read(value)
        except ValueError as error:
            raise ValueError(f"{key} {error}") from None
        return values
