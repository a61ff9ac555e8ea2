"""The workers' evidence laid side by side: who is equal to whom, and who is not."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

from unisono.listen.messages import AllRanksStep, RankStep
from unisono.records import Twins

AUDITS = ("reduced", "used", "weights", "state", "buffers", "start")
REAL = ("lr", "length", "padding", "input_mean", "input_scale")
"""Compared numbers that may be NaN."""

DATA = {"same_indices_W": "indices", "same_content_W": "content", "same_targets_W": "targets"}


def compare(all_ranks: AllRanksStep) -> dict[str, Any]:
    """The exact fields of the step's record."""
    present = [signal for signal in all_ranks.signal_W if signal is not None]
    if not present:
        return {}
    return _steps(all_ranks) | _optimizer(all_ranks, present) | _audits(all_ranks, present) | _data(all_ranks, present)


def _steps(all_ranks: AllRanksStep) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in ("skipped", "passes", "updates"):
        found_W = _each(all_ranks, name)
        if _differ(found_W):
            values[f"{name}_W"] = found_W
    for name in ("syncs", "backwards"):
        found_W = _each(all_ranks, name)
        if any(number not in (None, 1) for number in found_W):
            values[f"{name}_W"] = found_W
    return values


def _optimizer(all_ranks: AllRanksStep, present: Sequence[RankStep]) -> dict[str, Any]:
    lr_W, settings_W = _each(all_ranks, "lr"), _each(all_ranks, "settings")
    values: dict[str, Any] = {"lr_W": lr_W} if _differ(lr_W) else {"lr": present[0].lr}
    if _differ(settings_W):
        values["settings_W"] = twins(settings_W)
    return values


def _audits(all_ranks: AllRanksStep, present: Sequence[RankStep]) -> dict[str, Any]:
    parts = {(signal.part, signal.parts) for signal in present}
    part, whole = next(iter(parts))
    if len(parts) > 1 or not whole:
        return {}
    found = {name: _each(all_ranks, name) for name in AUDITS}
    taken = tuple(name for name in AUDITS if sum(number is not None for number in found[name]) > 1)
    differing = {f"{name}_W": twins(found[name]) for name in taken if _differ(found[name])}
    values: dict[str, Any] = {"audits": taken, "part": part, "parts": whole, **differing}
    if "weights_W" in differing:
        values["weight_spread"] = _spread([signal.weight_square for signal in present])
    return values


def _data(all_ranks: AllRanksStep, present: Sequence[RankStep]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in ("samples", "length", "padding", "input_mean", "input_scale"):
        found_W = _each(all_ranks, name)
        if any(number is not None for number in found_W):
            values[f"{name}_W"] = found_W
    for title, name in DATA.items():
        found_W = _each(all_ranks, name)
        if _any_equal(found_W):
            values[title] = twins(found_W)
    heard = [signal for signal in present if signal.content is not None]
    repeats = {signal.repeats for signal in all_ranks.signal_W if signal is not None}
    if len(repeats) == 1 and len(present) == len(all_ranks.signal_W):
        values["repeats"] = repeats.pop()
    known = [signal for signal in present if signal.content is not None or signal.indices is not None]
    return values | {
        "indexed": sum(signal.indices is not None for signal in present),
        "compared": len(heard),
        "fresh": bool(known) and all(signal.fresh for signal in known),
        "target_rows": min((signal.target_rows for signal in heard), default=0),
    }


def twins(values_W: Sequence[Hashable | None]) -> Twins:
    """For each worker the first one that holds the same."""
    first: dict[Hashable, int] = {}
    return tuple(None if value is None else first.setdefault(value, worker) for worker, value in enumerate(values_W))


def _each(all_ranks: AllRanksStep, name: str) -> tuple[Any, ...]:
    value_of = attrgetter(name)
    value_W = tuple(None if signal is None else value_of(signal) for signal in all_ranks.signal_W)
    return tuple(map(_same_nan, value_W)) if name in REAL else value_W


def _same_nan(value: Any) -> Any:
    """Workers that all hold NaN agree with each other; NaN does not agree even with itself, unless it is one object."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _differ(values_W: Sequence[Any]) -> bool:
    return len({value for value in values_W if value is not None}) > 1


def _any_equal(values_W: Sequence[Any]) -> bool:
    known = [value for value in values_W if value is not None]
    return len(set(known)) < len(known)


def _spread(squares: Sequence[float | None]) -> float | None:
    norms = [math.sqrt(square) for square in squares if square is not None and square >= 0]
    largest = max(norms, default=0.0)
    return (largest - min(norms)) / largest if largest and math.isfinite(largest) else None
