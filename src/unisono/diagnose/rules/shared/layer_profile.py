"""Where in the model something starts: the layer groups of one worker beside those of the others.

G = layer groups, T = readings, W = workers.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.statistics import median, median_of_others, scatter
from unisono.records import FloatRows, Floats, StepRecord

READINGS = 64
EVEN = 0.35
"""Groups whose ratios differ by less than this share of the whole (or `LEAST`, of logarithms) are alike."""

LEAST = 0.1


@dataclass(frozen=True, slots=True)
class Place:
    """The groups of one worker against the others': the one that differs most and the one that differs least."""

    most: int
    ratio: float
    least: int
    least_ratio: float
    even: bool

    def told(self, run_state: RunState) -> str:
        if self.even:
            return f"in all layers alike (x{self.ratio:.3g})"
        names = run_state.attempt.groups if run_state.attempt is not None else ()
        most, least = (names[g] if g < len(names) else f"group {g}" for g in (self.most, self.least))
        return f"most in {most} (x{self.ratio:.3g}), least in {least} (x{self.least_ratio:.3g})"


Reading: TypeAlias = tuple[int, FloatRows, dict[int, list[float | None]]]
"""Step, norms, and the gaps that were asked for so far, by worker."""


class Profile:
    """The newest norms of all groups and workers."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque(maxlen=READINGS)

    def add(self, record: StepRecord) -> None:
        if record.norm_GW:
            self._readings.append((record.step, record.norm_GW, {}))

    def place(self, worker: int, since: int) -> Place | None:
        """Where the worker differs, by its readings since a step; unknown where too few of them were written down."""
        found = [reading for reading in self._readings if reading[0] >= since]
        if len(found) < 3 or len(found[-1][1]) < 2:
            return None
        gap_TG = [_gaps(reading, worker) for reading in found]
        gaps_G = [[gap for gap in gaps if gap is not None] for gaps in zip(*gap_TG, strict=False)]
        known = [(median(gaps), group) for group, gaps in enumerate(gaps_G) if gaps]
        if len(known) < 2:
            return None
        known.sort(key=lambda pair: abs(pair[0]))
        (least, other), (most, group) = known[0], known[-1]
        spread = max(ratio for ratio, _ in known) - min(ratio for ratio, _ in known)
        even = spread <= max(LEAST, EVEN * abs(most)) or spread <= 3 * max(map(_error, filter(None, gaps_G)))
        return Place(group, math.exp(most), other, math.exp(least), even)


def _error(gaps: list[float]) -> float:
    """Of their median."""
    return 1.25 * scatter(gaps) / math.sqrt(len(gaps))


def _gaps(reading: Reading, worker: int) -> list[float | None]:
    """For each group the logarithm of the worker's norm over the median of the others'."""
    _, norm_GW, gaps_by_worker = reading
    if worker not in gaps_by_worker:
        gaps_by_worker[worker] = [_gap(norm_W, worker) for norm_W in norm_GW]
    return gaps_by_worker[worker]


def _gap(norm_W: Floats, worker: int) -> float | None:
    known = [norm for norm in norm_W if norm is not None and norm > 0]
    return math.log(known[worker] / median_of_others(known, worker)) if len(known) == len(norm_W) else None
