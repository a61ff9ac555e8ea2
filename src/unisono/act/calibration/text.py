"""A calibration in words, and as a guard file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from unisono.act.calibration.limits import Calibration, Suggestion
from unisono.common.terminal import lines_of, plain

LABEL = 14
COMMENT = 100
LISTENING = ("every",)
OFF = {"clip": "scale gradients down to it", "every": "listen so often from the first step on"}
"""Written down, but commented out: they change what was healthy, so they are asked for by hand."""


def as_text(found: Calibration, width: int = 80) -> str:
    parts = [lines_of(f"Limits for the guard, from {_source(found)}.", width)]
    for one in found.suggestions:
        head = f"{one.name:<{LABEL}}{one.value:g}"
        parts.append([head, *lines_of(one.evidence, width, first=" " * LABEL, rest=" " * LABEL)])
    remarks = [f"Left out: {found.left_out}."] * bool(found.left_out)
    remarks += [f"No suggestion for {one}." for one in found.unknown]
    parts += [lines_of(remark, width) for remark in remarks]
    return "\n\n".join("\n".join(lines) for lines in parts)


def as_toml(found: Calibration, run: str) -> str:
    lines = [*_comment(f"Written by `unisono calibrate` from {plain(run)}: {_source(found)}.")]
    lines += _comment(f"Left out: {found.left_out}.") if found.left_out else []
    lines += ["", "[guard]", "skip = true"]
    lines += _entries([one for one in found.suggestions if one.name not in LISTENING])
    listening = [one for one in found.suggestions if one.name in LISTENING]
    if listening:
        lines += ["", "# [listening]", *_entries(listening)]
    lines += [line for one in found.unknown for line in ("", *_comment(f"No suggestion for {one}."))]
    return "\n".join(lines) + "\n"


def _source(found: Calibration) -> str:
    workers = f"{found.workers} {'worker' if found.workers == 1 else 'workers'}"
    steps = f"steps {found.first_step:,} to {found.last_step:,}"
    return f"{found.readings:,} readings of the gradient's norm, {steps}, {workers}"


def _entries(suggestions: Sequence[Suggestion]) -> list[str]:
    lines: list[str] = []
    for one in suggestions:
        off = one.name in OFF
        hint = f" Take away the # to {OFF[one.name]}." if off else ""
        lines += ["", *_comment(f"{one.evidence}.{hint}"), f"{'# ' * off}{one.name} = {one.value!r}"]
    return lines


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, COMMENT)]
