"""What unisono writes down: frozen records of plain numbers, one per line of a run file.

Suffixes give shapes: W = workers of the group in rank order, G = layer groups. `None` stands for "not known".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sized
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias, cast

from unisono._jsonform import Codec, Form, each

FORMAT = 1

Floats: TypeAlias = tuple[float | None, ...]
FloatRows: TypeAlias = tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The first line of a run file."""

    kind: ClassVar[str] = "run"
    format: int
    run: str
    time: float
    script: str
    unisono: str


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Where one rank runs."""

    rank: int
    host: str
    pid: int
    device: str


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """A start or restart of the job: who takes part, and how they are heard."""

    kind: ClassVar[str] = "attempt"
    attempt: int
    time: float
    world: int
    first_step: int
    workers: tuple[WorkerFacts, ...]
    groups: tuple[str, ...] = ()
    parameters: int = 0
    sketch_length: int = 0
    torch: str = ""
    python: str = ""
    launcher: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step as all workers saw it. Everything below `finite_W` needs a heard step (`heard`)."""

    kind: ClassVar[str] = "step"
    attempt: int
    step: int
    time: float
    heard: bool = False
    skipped: bool = False
    """The loss scaler (or the user) took no optimizer step."""

    skipped_steps: int = 0
    """How many such steps there have been in this attempt."""

    loss_W: Floats = ()
    loss_mean: float | None = None
    loss_std: float | None = None
    loss_range: float | None = None
    finite_W: tuple[bool | None, ...] = ()
    compute_W: Floats = ()
    """Seconds from the end of the last step to the end of the rank's own backward."""

    step_W: Floats = ()
    """Seconds of the whole step."""

    clip_norm: float | None = None
    """What the user's `clip_grad_norm_` returned."""

    listening_cost: float | None = None
    """Share of the training thread's time spent inside unisono since the start, worst rank."""

    norm_W: Floats = ()
    grad_norm: float | None = None
    grad_norm_std: float | None = None
    grad_norm_cv: float | None = None
    nonfinite_W: tuple[int | None, ...] = ()
    """Parameter tensors with a NaN or infinity in their gradient."""

    cos_W: Floats = ()
    """Leave-one-out: each worker's gradient against the sum of the others'."""

    cos_mean: float | None = None
    cos_min: float | None = None
    cos_weighted: float | None = None
    """Norm-weighted mean cosine over pairs, exact (no sketch)."""

    cos_expected: float | None = None
    noise_scale: float | None = None
    """Gradient noise scale in units of one worker's batch, smoothed."""

    effective_workers: float | None = None
    cos_WW: FloatRows = ()
    norm_G: Floats = ()
    """Root mean square over workers of each layer group's norm."""

    norm_GW: FloatRows = ()
    cos_GW: FloatRows = ()
    window_start: int | None = None
    window_steps: int | None = None
    window_cos_W: Floats = ()
    """Leave-one-out cosines of the directions summed since `window_start`."""


@dataclass(frozen=True, slots=True)
class NoteRecord:
    """Something unisono has to say about itself: degraded, recovered, readings lost."""

    kind: ClassVar[str] = "note"
    attempt: int
    step: int
    time: float
    text: str


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The attempt was closed in good order."""

    kind: ClassVar[str] = "end"
    attempt: int
    step: int
    time: float
    steps: int
    heard: int
    lost: int
    listening_cost: float | None = None


@dataclass(frozen=True, slots=True)
class LocalStep:
    """One step as one rank saw it; a line of `rank-N.jsonl`."""

    kind: ClassVar[str] = "local"
    attempt: int
    rank: int
    step: int
    time: float
    loss: float | None = None
    finite: bool | None = None
    norm: float | None = None
    compute: float | None = None
    seconds: float | None = None


Record: TypeAlias = RunRecord | AttemptRecord | StepRecord | NoteRecord | EndRecord | LocalStep
RECORD_TYPES: dict[str, type[Any]] = {
    cls.kind: cls for cls in (RunRecord, AttemptRecord, StepRecord, NoteRecord, EndRecord, LocalStep)
}


def to_line(record: Record) -> str:
    """One line of ASCII JSON without its newline, the record's kind first.

    Fields at their default are left out, floats keep nine significant digits (float32 exactly), times microseconds.
    """
    return _FORMS[record.kind].write(record, start=f'"type":"{record.kind}"')


def from_line(text: str) -> Record | None:
    """The record of one line; `None` for a kind that only newer versions know.

    Raises `ValueError` with a short reason for everything else.
    """
    content = _parse(text)
    kind = content.get("type") if type(content) is dict else None
    if type(kind) is not str:
        raise ValueError("should be a JSON object with a type")
    if kind not in _FORMS:
        return None
    record = cast(Record, _FORMS[kind].read(content))
    if type(record) is StepRecord:
        _check_shapes(record)
    return record


def _parse(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("has a key twice")
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"has the literal {name}, which is not JSON")


def _check_shapes(record: StepRecord) -> None:
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
_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
_SHAPES = [(f.name, *shape.groups()) for f in fields(StepRecord) if (shape := re.search("_([WG])([WG]?)$", f.name))]
