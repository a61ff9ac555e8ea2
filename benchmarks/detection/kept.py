"""What the benchmark keeps on disk: outcomes, to go on after a stop; records, for changed rules to judge them again."""

from __future__ import annotations

import json
import marshal
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from benchmarks.detection.outcome import Outcome, Told

from unisono.records import Record, StepRecord, from_line, to_line

USUAL = {field.name: field.default for field in fields(StepRecord)}


def save_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    _write(path, json.dumps([asdict(outcome) for outcome in outcomes]).encode())


def load_outcomes(path: Path) -> list[Outcome]:
    return [_outcome(**kept) for kept in json.loads(path.read_text())]


def save_records(runs: Iterable[Sequence[Record]], path: Path) -> None:
    """Of all runs of a trial. A step is what of it is not as usual, which loads faster than the lines of a run file."""
    kept = [[_unusual(record) if record.kind == "step" else to_line(record) for record in run] for run in runs]
    _write(path, zlib.compress(marshal.dumps(kept), 1))


def load_records(path: Path) -> Iterator[list[Record]]:
    for run in marshal.loads(zlib.decompress(path.read_bytes())):
        yield [from_line(kept) if isinstance(kept, str) else StepRecord(**kept) for kept in run]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)


def _unusual(record: Record) -> dict[str, object]:
    values = ((name, getattr(record, name)) for name in USUAL)
    return {name: value for name, value in values if value is not USUAL[name] and value != ()}


def _outcome(told: list[dict], early: list[dict], final_ranks: dict, **plain) -> Outcome:  # type: ignore[no-untyped-def, type-arg]
    return Outcome(
        told=tuple(_told(**one) for one in told),
        early=tuple(_told(**one) for one in early),
        final_ranks={code: tuple(ranks) for code, ranks in final_ranks.items()},
        **plain,
    )


def _told(ranks: list[int], **plain) -> Told:  # type: ignore[no-untyped-def]
    return Told(ranks=tuple(ranks), **plain)
