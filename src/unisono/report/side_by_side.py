"""Two runs next to each other, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from unisono.records import StepRecord
from unisono.report.series import sparkline

ROWS = {
    "loss": "loss_mean",
    "loss dispersion (std)": "loss_std",
    "gradient norm": "grad_norm",
    "norm dispersion (cv)": "grad_norm_cv",
    "direction consistency": "cos_mean",
    "expected from noise": "cos_expected",
    "effective workers": "effective_workers",
}
BARS = 20


def side_by_side(runs: Mapping[str, Sequence[StepRecord]]) -> str:
    """A row per measure, a column per run: how it went, and its mean over the last half."""
    width = BARS + 10
    lines = [" " * 24 + "".join(f"{name:<{width}}" for name in runs).rstrip()]
    for title, field in ROWS.items():
        cells = [_cell([getattr(record, field) for record in records]) for records in runs.values()]
        lines.append(f"{title:<24}" + "".join(f"{cell:<{width}}" for cell in cells).rstrip())
    return "\n".join(lines)


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return "-"
    half = known[len(known) // 2 :]
    return f"{math.fsum(half) / len(half):>7.3g} {sparkline(known, BARS)}"
