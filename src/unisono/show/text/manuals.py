"""What the manuals' own thresholds say of a run: remarks beside the findings, for whoever asked for them."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.diagnose.manuals import WITHOUT_NUMBER, Crossings, Threshold

HEADING = "by the manuals' own thresholds (remarks, asked for with --thresholds manuals: no verdict rests on them)"


def manual_lines(crossings: Mapping[Threshold, Crossings]) -> list[str]:
    """A heading, a line for each threshold that was crossed, those that were not, those that do not exist."""
    crossed = {one: found for one, found in crossings.items() if found.crossed}
    quiet = [one.pattern for one, found in crossings.items() if found.judged and not found.crossed]
    unjudged = [one.pattern for one, found in crossings.items() if not found.judged]
    lists = [
        ("never crossed", quiet),
        ("too few readings", unjudged),
        ("no number in the manuals", list(WITHOUT_NUMBER)),
    ]
    told = [_line(one, found) for one, found in crossed.items()]
    return [HEADING, *told, *(f"{label}: {', '.join(names)}" for label, names in lists if names)]


def _line(threshold: Threshold, found: Crossings) -> str:
    return (
        f"{threshold.pattern}: {threshold.words}, {found.crossed:,} times of {found.judged:,}, first at step "
        f"{found.first_step:,} ({found.first_value:.3g}); healthy training: {threshold.alarms:,} in a million steps; "
        f"our rule: {threshold.code}"
    )
