"""Records of very many workers that still fit into a line of the run file."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from unisono.records import StepRecord, to_line
from unisono.records.runfile.lines import LINE_LIMIT

LONGEST_NUMBER = 17
"""Bytes of a number in a list, with its comma."""

FIRST_TO_GO = (
    *("step_W", "padding_W", "length_W", "input_mean_W", "input_scale_W", "distance_W", "weight_W", "samples_W"),
    *("compute_W", "window_cos_W", "cos_W", "norm_W", "loss_W"),
)
"""What says least about which worker is at fault goes first; exact evidence and `finite_W` last."""

_LISTS = [field.name for field in fields(StepRecord) if field.name.endswith("_W")]
_ORDER = (*FIRST_TO_GO, *(name for name in reversed(_LISTS) if name not in FIRST_TO_GO))


def shortened(record: StepRecord) -> tuple[StepRecord, tuple[str, ...]]:
    """The record without as many of its lists as it takes, and their names; most often as it is."""
    numbers = sum(len(getattr(record, name)) for name in _LISTS)
    if LONGEST_NUMBER * numbers < LINE_LIMIT // 2:
        return record, ()
    excess, left_out = len(to_line(record)) + 1 - LINE_LIMIT, []
    for name in _ORDER:
        if excess > 0 and getattr(record, name):
            excess -= _size_of(record, name)
            left_out.append(name)
    nothing: dict[str, Any] = dict.fromkeys(left_out, ())
    return replace(record, **nothing), tuple(left_out)


def _size_of(record: StepRecord, name: str) -> int:
    bare = StepRecord(record.attempt, record.step, record.time)
    return len(to_line(replace(bare, **{name: getattr(record, name)}))) - len(to_line(bare))
