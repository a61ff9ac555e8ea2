"""Reading a run file. Unreadable lines are counted, never fatal: a killed job tears its last line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.common.errors import RunFileError
from unisono.records import (
    FORMAT,
    RECORD_TYPES,
    AttemptRecord,
    EndRecord,
    NoteRecord,
    Record,
    RunRecord,
    StepRecord,
    ValidationRecord,
)
from unisono.records.known_attempts import KnownAttempts
from unisono.records.runfile.lines import AnyPath, lines_of, locate, unreadable

BAD_LINES_NAMED = 100
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
COMPRESSED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"\x28\xb5": "zstd"}


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read from its file, records in file order."""

    path: Path
    header: RunRecord
    attempts: tuple[AttemptRecord, ...]
    steps: tuple[StepRecord, ...]
    notes: tuple[NoteRecord, ...]
    ends: tuple[EndRecord, ...]
    bad_lines: tuple[int, ...]
    """Numbers of the first unreadable lines, counted from 1."""

    bad_count: int
    validations: tuple[ValidationRecord, ...] = ()

    def timeline(self) -> tuple[StepRecord, ...]:
        """One record per step, in order of steps. An attempt takes the place of all that earlier ones did from its
        first step on, also of what it has not reached again."""
        by_attempt: dict[int, dict[int, StepRecord]] = {}
        for record in self.steps:
            by_attempt.setdefault(record.attempt, {})[record.step] = record
        line: list[StepRecord] = []
        for _, own in sorted(by_attempt.items()):
            start = min(own)
            while line and line[-1].step >= start:
                line.pop()
            line += [own[step] for step in sorted(own)]
        return tuple(line)


def scan(path: AnyPath) -> Iterator[tuple[int, Record | None]]:
    """Each record with its line number, read as asked for; `None` stands for an unreadable line.

    Blank lines and kinds of record that only newer versions know are passed over. What cannot be true, or does not fit
    its attempt, counts as unreadable.
    """
    file_path, attempts = locate(path), KnownAttempts()
    try:
        with file_path.open("rb") as file:
            for number, line in enumerate(lines_of(file), start=1):
                try:
                    record = _record(number, line, attempts)
                except ValueError:
                    yield number, None
                else:
                    if record is not None:
                        yield number, record
    except OSError as error:
        raise unreadable(file_path, error) from None


def _record(number: int, line: bytes | None, attempts: KnownAttempts) -> Record | None:
    if line is None:
        raise ValueError("is too long")
    if number == 1:
        line = line.removeprefix(BYTE_ORDER_MARK)
    return attempts.read(line.decode("utf-8")) if line.strip() else None


def read_run(path: AnyPath) -> Run:
    """Open a run, given its directory or file. Raises `RunFileError` when there is no run to be found in it."""
    file_path = locate(path)
    found: dict[str, list[Any]] = {kind: [] for kind in RECORD_TYPES}
    bad_lines: list[int] = []
    bad_count = 0
    for number, record in scan(file_path):
        if record is None or _of_another_run(record, found["run"]):
            bad_count += 1
            bad_lines += [number] if bad_count <= BAD_LINES_NAMED else []
        else:
            _check_format(record, file_path)
            found[record.kind].append(record)
    return Run(
        path=file_path,
        header=_header(found, file_path, bad_count),
        attempts=tuple(found["attempt"]),
        steps=tuple(found["step"]),
        notes=tuple(found["note"]),
        ends=tuple(found["end"]),
        bad_lines=tuple(bad_lines),
        bad_count=bad_count,
        validations=tuple(found["validation"]),
    )


def _of_another_run(record: Record, headers: list[RunRecord]) -> bool:
    return isinstance(record, RunRecord) and bool(headers) and record.run != headers[0].run


def _check_format(record: Record, path: Path) -> None:
    if isinstance(record, RunRecord) and record.format > FORMAT:
        raise RunFileError(
            f"This unisono reads run files up to format {FORMAT}. Found format {record.format} in `{path}`. "
            "Update it with: pip install -U unisono"
        )


def _header(found: dict[str, list[Any]], path: Path, bad_count: int) -> RunRecord:
    """The first line, or a stand-in when damage took it and other records survive."""
    if found["run"]:
        header: RunRecord = found["run"][0]
        return header
    survivors = found["attempt"] + found["step"]
    if not survivors:
        raise RunFileError(_not_a_run(path, bad_count, local=bool(found["local"])))
    return RunRecord(FORMAT, run=path.parent.name, time=survivors[0].time, script="", unisono="")


def _not_a_run(path: Path, bad_count: int, local: bool) -> str:
    rule = "A run file should hold unisono's records, one per line."
    if local:
        return f"{rule} Found the last steps of a single rank in `{path}`. Give the run's directory."
    if not bad_count:
        return f"{rule} Found none in `{path}`: nothing was recorded, or it was lost. Give another run."
    with path.open("rb") as file:
        packing = COMPRESSED.get(file.read(2))
    if packing:
        return f"{rule} Found a {packing} archive at `{path}`. Unpack it first."
    return f"{rule} Found {bad_count} unreadable lines in `{path}` and nothing else. Give another file."
