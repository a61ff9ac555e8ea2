"""Where in the model something started: each layer group's norm against its past. T = readings, G = layer groups."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.statistics import median
from unisono.records import Floats

ALIKE = 2.0
"""Groups whose ratios differ by less than this factor have grown alike."""


def growth(norm_G: Floats, past_TG: Sequence[Floats]) -> list[float | None]:
    """The norms as multiples of their past medians; unknown where a group had no gradient."""
    found: list[float | None] = []
    for group, norm in enumerate(norm_G):
        known = [past for past_G in past_TG if group < len(past_G) and (past := past_G[group]) is not None]
        usual = median(known) if known else 0.0
        found.append(norm / usual if norm is not None and usual > 0 else None)
    return found


def told(ratio_G: Sequence[float | None], run_state: RunState) -> str | None:
    """`most in head (x52), least in embedding (x3.1)`."""
    known = sorted((ratio, group) for group, ratio in enumerate(ratio_G) if ratio is not None)
    if len(known) < 2:
        return None
    (least, lowest), (most, highest) = known[0], known[-1]
    if most < ALIKE * least:
        return f"in all layers alike (x{most:.3g})"
    return f"most in {name(highest, run_state)} (x{most:.3g}), least in {name(lowest, run_state)} (x{least:.3g})"


def name(group: int, run_state: RunState) -> str:
    names = run_state.attempt.groups if run_state.attempt is not None else ()
    return names[group] if group < len(names) else f"layer group {group}"
