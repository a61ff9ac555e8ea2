"""What is kept of a run: the measures over its steps, and what unisono found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from unisono.lab.experiments.results import Run
from unisono.lab.experiments.silent_inconsistency.perturbations import Drawn, Ground, Perturbation
from unisono.records import StepRecord
from unisono.records.finding import Finding
from unisono.records.runfile import read_run
from unisono.show.analysis.checkup import examine

MEASURES = ("loss_mean", "loss_std", "loss_range", "grad_norm_std", "grad_norm_cv", "cos_mean")
POINTS = 20
"""Of a curve: each is the mean over as many steps."""


def outcome(ground: Ground, perturbation: Perturbation, seen: Drawn, run_dir: Path) -> Run:
    steps = read_run(run_dir).timeline()
    findings = examine(run_dir).findings
    at_fault = perturbation.at_fault(ground)
    found = [finding for finding in findings if perturbation.code and finding.code == perturbation.code]
    return {
        "code": perturbation.code,
        "at_fault": list(at_fault),
        "found": bool(found) if perturbation.code else None,
        "named": any(finding.ranks == at_fault for finding in found) if at_fault else None,
        "findings": [_told(finding) for finding in findings],
        **{name: _summary(steps, name) for name in MEASURES},
        "closest_pair": _closest_pair(steps),
        "repeated_W": _rounded(seen.repeated_W),
        "altered_W": _rounded(seen.altered_W),
        "tokens_W": _rounded(seen.tokens_W),
        "streams": seen.streams,
    }


def _told(finding: Finding) -> dict[str, Any]:
    names = ("code", "severity", "state", "first_step", "why")
    told = {name: getattr(finding, name) for name in names} | {"ranks": list(finding.ranks)}
    symptoms = finding.evidence.get("symptoms")
    return told if symptoms is None else told | {"symptoms": symptoms}


def _summary(steps: Sequence[StepRecord], name: str) -> dict[str, Any]:
    values = [value for step in steps if (value := getattr(step, name)) is not None]
    if not values:
        raise ValueError(f"`{name}` should be known of some step. Found none in {len(steps)} steps.")
    size = max(1, -(-len(values) // POINTS))
    curve = [fmean(values[place : place + size]) for place in range(0, len(values), size)]
    return {
        "mean": round(fmean(values), 6),
        "start": round(curve[0], 6),
        "end": round(fmean(values[-2 * size :]), 6),
        "curve": [float(f"{value:.5g}") for value in curve],
    }


def _closest_pair(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """The two ranks whose gradients agree most, by the mean of their cosine, and how much the next two do."""
    cosines: dict[tuple[int, int], list[float]] = defaultdict(list)
    for step in steps:
        for one, other in combinations(range(len(step.cos_WW)), 2):
            cosine = step.cos_WW[one][other]
            if cosine is not None:
                cosines[one, other].append(cosine)
    means = sorted(((fmean(values), pair) for pair, values in cosines.items()), reverse=True)
    (cosine, pair), following = means[0], means[1][0] if len(means) > 1 else None
    return {"ranks": list(pair), "cosine": round(cosine, 4), "next": None if following is None else round(following, 4)}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]
