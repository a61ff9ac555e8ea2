"""Where in the model something starts: the layer groups of one worker beside those of the others. G = layer groups."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from unisono.history import median, medians_of_others, scatter
from unisono.records import StepRecord
from unisono.rules._scene import Scene

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

    def told(self, scene: Scene) -> str:
        if self.even:
            return f"in all layers alike (x{self.ratio:.3g})"
        names = scene.attempt.groups if scene.attempt is not None else ()
        most, least = (names[g] if g < len(names) else f"group {g}" for g in (self.most, self.least))
        return f"most in {most} (x{self.ratio:.3g}), least in {least} (x{self.least_ratio:.3g})"


class Profile:
    """The newest norms of all groups and workers."""

    def __init__(self) -> None:
        self._readings: deque[tuple[int, tuple[tuple[float | None, ...], ...]]] = deque(maxlen=READINGS)

    def add(self, record: StepRecord) -> None:
        if record.norm_GW:
            self._readings.append((record.step, record.norm_GW))

    def place(self, worker: int, since: int) -> Place | None:
        """Where the worker differs, by its readings since a step; unknown where too few of them were written down."""
        found = [norm_GW for step, norm_GW in self._readings if step >= since]
        if len(found) < 3 or len(found[-1]) < 2:
            return None
        gaps_G = [_gaps([norm_GW[group] for norm_GW in found], worker) for group in range(len(found[-1]))]
        known = [(median(gaps), group) for group, gaps in enumerate(gaps_G) if gaps]
        error = max((1.25 * scatter(gaps) / math.sqrt(len(gaps)) for gaps in gaps_G if gaps), default=0.0)
        if len(known) < 2:
            return None
        known.sort(key=lambda pair: abs(pair[0]))
        (least, other), (most, group) = known[0], known[-1]
        spread = max(ratio for ratio, _ in known) - min(ratio for ratio, _ in known)
        return Place(group, math.exp(most), other, math.exp(least), spread <= max(LEAST, EVEN * abs(most), 3 * error))


def _gaps(norm_TW: list[tuple[float | None, ...]], worker: int) -> list[float]:
    """Logarithms of the worker's norm over the median of the others'."""
    gaps = []
    for norm_W in norm_TW:
        known = [norm for norm in norm_W if norm is not None and norm > 0]
        if len(known) == len(norm_W):
            gaps.append(math.log(known[worker] / medians_of_others(known)[worker]))
    return gaps
