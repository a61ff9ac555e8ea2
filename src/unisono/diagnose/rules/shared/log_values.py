"""Logarithms of what the workers measured. W = workers."""

from __future__ import annotations

import math
from collections.abc import Sequence


def logs(value_W: Sequence[float | None], floor: float = 0.0) -> list[float] | None:
    """Logarithms, where all values are known, finite and above zero (or raised to a floor above it)."""
    if len(value_W) < 2:
        return None
    try:
        logs_W = list(map(math.log, value_W))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return _one_by_one(value_W, floor)
    usual = math.isfinite(sum(logs_W)) and (floor == 0 or min(value_W) >= floor)  # type: ignore[type-var, operator]
    return logs_W if usual else _one_by_one(value_W, floor)


def _one_by_one(value_W: Sequence[float | None], floor: float) -> list[float] | None:
    logs_W = []
    for value in value_W:
        if value is None or not math.isfinite(value) or max(value, floor) <= 0:
            return None
        logs_W.append(math.log(max(value, floor)))
    return logs_W
