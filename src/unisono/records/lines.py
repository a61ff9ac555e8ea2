"""Records to and from lines of text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias, cast, get_args

from unisono.records.decision import DecisionRecord
from unisono.records.evidence import BatchRecord, CoverageRecord, FactsRecord, ReplicasRecord, StreamsRecord
from unisono.records.json_codec import MOST_COUNTED, Codec, Form, each
from unisono.records.run import (
    AttemptRecord,
    DepartureRecord,
    EndRecord,
    HeartbeatRecord,
    LocalStep,
    NoteRecord,
    RunRecord,
    StepRecord,
    ValidationRecord,
    WorkerFacts,
)

Record: TypeAlias = (
    RunRecord
    | AttemptRecord
    | StepRecord
    | FactsRecord
    | ReplicasRecord
    | CoverageRecord
    | StreamsRecord
    | BatchRecord
    | DecisionRecord
    | ValidationRecord
    | NoteRecord
    | EndRecord
    | HeartbeatRecord
    | DepartureRecord
    | LocalStep
)
MOST_UNNAMED = 1024
RECORD_TYPES: dict[str, type[Any]] = {cls.kind: cls for cls in get_args(Record)}


def to_line(record: Record) -> str:
    """One line of ASCII JSON without its newline, the record's kind first.

    Fields at their default are left out, floats keep nine significant digits (float32 exactly), times microseconds.
    """
    return _FORMS[record.kind].write(record, start=f'"type":"{record.kind}"')


def from_line(text: str) -> Record | None:
    """The record of one line; `None` for a kind that only newer versions know.

    Raises `ValueError` with a short reason for everything else.
    """
    content = _parsed(text)
    kind = content.get("type") if type(content) is dict else None
    if type(kind) is not str:
        raise ValueError("should be a JSON object with a type")
    if kind not in _FORMS:
        return None
    record = cast(Record, _FORMS[kind].read(content))
    if type(record) is StepRecord:
        _check_shapes(record)
    elif type(record) is AttemptRecord:
        _check_workers(record)
    elif type(record) is CoverageRecord:
        _check_samples(record)
    if kind in _TWINS:
        _check_twins(record)
    return record


def _parsed(text: str) -> Any:
    try:
        content = _LOADS(text)
    except (ValueError, RecursionError):
        return _strictly_parsed(text)
    # As many colons as keys: the object is flat, and no key was there twice.
    if type(content) is dict and len(content) == text.count(":"):
        return content
    return _strictly_parsed(text)


def _strictly_parsed(text: str) -> Any:
    try:
        return _STRICT.decode(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _fastest() -> Callable[[str], Any]:
    """That of orjson, which comes with the extra `report`: half the time, a quarter with many workers."""
    try:
        from orjson import loads
    except ImportError:
        return json.JSONDecoder(parse_constant=_refuse_constant).decode
    return loads


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("has a key twice")
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"has the literal {name}, which is not JSON")


def _check_shapes(record: StepRecord) -> None:
    # What is empty is not known, and most fields are.
    workers = set(map(len, filter(None, of_workers(record))))
    matrices = _matrices(record)
    if any(matrices):
        workers.update(map(len, chain.from_iterable(matrices)))
    if len(workers) > 1 or len(set(map(len, filter(None, _of_groups(record))))) > 1:
        _refuse_shape(record)


def _check_workers(record: AttemptRecord) -> None:
    """The size of the world is believed only as far as the workers are there; without any, within reason."""
    fits = 0 < record.world <= MOST_UNNAMED if not record.workers else record.world == len(record.workers)
    if not fits:
        raise ValueError(f"world should be the number of workers. Found {record.world}")
    if len({worker.rank for worker in record.workers}) < len(record.workers):
        raise ValueError("workers should have different ranks")


def _check_samples(record: CoverageRecord) -> None:
    """Estimates of how many there are, but still numbers of something."""
    for estimate in (record.distinct, *record.distinct_W):
        if estimate is not None and not 0 <= estimate <= MOST_COUNTED:
            raise ValueError(f"distinct samples should be counted from 0 up. Found {estimate:g}")


def _check_twins(record: Record) -> None:
    for twins_W in filter(None, _TWINS[record.kind](record)):
        if max((first for first in twins_W if first is not None), default=0) >= len(twins_W):
            raise ValueError("a worker should share with one of the others")


def _refuse_shape(record: StepRecord) -> None:
    """Goes through the fields one by one to name the first that does not fit."""
    sizes: dict[str, int] = {}
    for name, outer, inner in _SHAPES:
        values = getattr(record, name)
        if values:
            _check_size(sizes, name, outer, values)
        if inner:
            for row in values:
                _check_size(sizes, name, inner, row)


def _check_size(sizes: dict[str, int], name: str, letter: str, values: Sized) -> None:
    if sizes.setdefault(letter, len(values)) != len(values):
        raise ValueError(f"{name} has another length than the other {letter} fields")


_WORKERS = Form(WorkerFacts)
_WORKER_LIST = Codec(
    write=lambda workers: f"[{','.join(map(_WORKERS.write, workers))}]",
    read=each(_WORKERS.read),
)
_FORMS = {kind: Form(cls, {tuple[WorkerFacts, ...]: _WORKER_LIST}) for kind, cls in RECORD_TYPES.items()}
_LOADS = _fastest()
_STRICT = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
_SHAPES = [(f.name, *shape.groups()) for f in fields(StepRecord) if (shape := re.search("_([WG])([WG]?)$", f.name))]
of_workers = attrgetter(*(name for name, outer, _ in _SHAPES if outer == "W"))
_of_groups = attrgetter(*(name for name, outer, _ in _SHAPES if outer == "G"))
_matrices = attrgetter(*(name for name, _, inner in _SHAPES if inner))
"""Every matrix has workers as its columns."""

_OF_TWINS = ("reduced", "used", "weights", "state", "buffers", "start", "settings")
_TWINS: dict[str, Callable[[Any], Iterable[Sequence[int | None]]]] = {
    "step": attrgetter(*(f"{name}_W" for name in (*_OF_TWINS, "same_indices", "same_content", "same_targets"))),
    "replicas": lambda record: (record.weights_W,),
    "streams": lambda record: record.same.values(),
}
