"""Two runs next to each other, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from unisono.records import StepRecord
from unisono.show.analysis.series import sparkline

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
    return columns(
        {
            name: {field: [getattr(record, field) for record in run] for field in ROWS.values()}
            for name, run in runs.items()
        }
    )


def columns(runs: Mapping[str, Mapping[str, Sequence[float | None]]], bars: int = BARS) -> str:
    """The same of values that are already taken out of their records; closer together where there are no bars."""
    label, width = (24, bars + 10) if bars else (22, 9)
    lines = [" " * label + "".join(f"{name:<{width}}" for name in runs).rstrip()]
    for title, field in ROWS.items():
        cells = [_cell(run[field], bars) for run in runs.values()]
        lines.append(f"{title:<{label}}" + "".join(f"{cell:<{width}}" for cell in cells).rstrip())
    return "\n".join(lines)


def settled(values: Sequence[float | None]) -> float | None:
    """The mean over the last half of what is known."""
    known = _known(values)
    half = known[len(known) // 2 :]
    return math.fsum(half) / len(half) if half else None


def _cell(values: Sequence[float | None], bars: int) -> str:
    mean = settled(values)
    return "-" if mean is None else f"{_short(mean):>7} {sparkline(_known(values), bars) if bars else ''}"


def _short(number: float) -> str:
    """Seven characters at most: three digits, or two where a sign and an exponent need the room."""
    text = f"{number:.3g}"
    return text if len(text) <= 7 else f"{number:.1e}" if abs(number) < 1e-3 else f"{number:.2g}"


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
