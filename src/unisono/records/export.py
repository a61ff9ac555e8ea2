"""A run's steps as a table: a row per step of the timeline, a column per number, `loss_W` as `loss_0`, `loss_1`..."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from unisono.common.errors import UserError
from unisono.common.whole_file import output_beside, whole_file
from unisono.records import StepRecord
from unisono.records.runfile import Run

HINTS = get_type_hints(StepRecord)
FIELDS = [field.name for field in fields(StepRecord)]
NESTED = [name for name in FIELDS if name.endswith(("_G", "_WW", "_GW"))]
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Column(NamedTuple):
    """One column: its name, the type of its cells, and how to take one from a record."""

    name: str
    hint: Any
    value: Callable[[StepRecord], Any]


def export_csv(run: Run, file: str | os.PathLike[str]) -> None:
    """Write the table as CSV, without the matrices and layer groups."""
    steps = run.timeline()
    columns = [*_flat_columns(steps), _validation_column(run)]
    target = output_beside(run.path, file)
    with whole_file(target) as temporary, temporary.open("w", encoding="utf-8", newline="") as output:
        table = csv.writer(output)
        table.writerow(column.name for column in columns)
        table.writerows([_cell(column.value(step)) for column in columns] for step in steps)


def export_parquet(run: Run, file: str | os.PathLike[str]) -> None:
    """Write the table as Parquet, matrices and layer groups as nested lists. Needs pyarrow."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "Export to Parquet requires ['pyarrow'] to be installed. Install it with: pip install \"unisono[parquet]\""
        ) from None
    steps = run.timeline()
    columns = [*_flat_columns(steps), _validation_column(run), *map(_nested_column, NESTED)]
    arrays = {column.name: pa.array(map(column.value, steps), _arrow_type(pa, column.hint)) for column in columns}
    with whole_file(output_beside(run.path, file)) as temporary:
        parquet.write_table(pa.table(arrays), temporary)


def _flat_columns(steps: Sequence[StepRecord]) -> Iterator[Column]:
    for name in FIELDS:
        if name.endswith("_W"):
            workers = max((len(getattr(step, name)) for step in steps), default=0)
            yield from (_worker_column(name, rank) for rank in range(workers))
        elif name not in NESTED:
            yield Column(name, HINTS[name], attrgetter(name))


def _worker_column(name: str, rank: int) -> Column:
    def value(step: StepRecord) -> Any:
        values = getattr(step, name)
        return values[rank] if rank < len(values) else None

    return Column(f"{name.removesuffix('W')}{rank}", get_args(HINTS[name])[0], value)


def _validation_column(run: Run) -> Column:
    """In the row of the step after which it was recorded."""
    known = {(record.attempt, record.step): record.validation for record in run.validations}
    return Column("validation", float | None, lambda step: known.get((step.attempt, step.step)))


def _nested_column(name: str) -> Column:
    return Column(name, HINTS[name], lambda step: getattr(step, name) or None)


def _cell(value: Any) -> Any:
    """Texts that a spreadsheet would run as a formula get a quote in front; numbers stay as they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _arrow_type(pa: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return pa.list_(_arrow_type(pa, get_args(hint)[0]))
    plain_type = get_args(hint)[0] if get_args(hint) else hint
    return {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}[plain_type]
