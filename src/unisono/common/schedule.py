"""When to listen: every step up to 100, then within 1 % of the step time up to 500, then within 0.5 %, by default.

Steps are counted from where listening began, so that a resumed run is heard closely again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

LONGEST_INTERVAL = 500
WINDOW = 32
"""Listened steps over which directions are summed: an alarm about them takes two windows."""

BURST = 64
"""Steps that are all listened to after a suspicion."""

ASSUMED_COST = 0.1
"""What a reading is taken to cost, in step times, until it has been measured: every 10th step within 1 %."""


@dataclass(frozen=True)
class Segment:
    """Listen to every `interval`-th step up to (not including) step `end`."""

    interval: int
    end: int | None = None
    budget: float | None = None
    """Share of the step time that listening may take; the interval is then measured, `interval` its largest value."""

    def interval_at(self, cost: float) -> int:
        """Steps from one reading to the next where a reading costs `cost` step times."""
        if self.budget is None:
            return self.interval
        return math.ceil(min(self.interval, max(1.0, cost / self.budget)))

    def __str__(self) -> str:
        pace = f"every {self.interval}" if self.budget is None else f"within {self.budget:.9g} of the step time"
        return pace if self.end is None else f"{pace} until {self.end}"


@dataclass(frozen=True)
class Schedule:
    """Segments, one after the other; the last one has no end."""

    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        return ", then ".join(map(str, self.segments))

    def until(self, step: int) -> Schedule:
        last = self.segments[-1]
        begin = self.segments[-2].end if len(self.segments) > 1 else 0
        if step <= (begin or 0):
            raise ValueError(f"`until` should lie after the segment's begin, step {begin}. Found `until({step})`.")
        return Schedule((*self.segments[:-1], replace(last, end=step)))

    def then(self, following: Schedule) -> Schedule:
        if self.segments[-1].end is None:
            raise ValueError("`then` follows a segment with an end. Write `every(1).until(100).then(...)`.")
        return Schedule((*self.segments, *following.segments))

    def segment_at(self, step: int) -> tuple[int, Segment]:
        """The segment that holds `step`, and the step where it begins."""
        begin = 0
        for segment in self.segments:
            if segment.end is None or step < segment.end:
                return begin, segment
            begin = segment.end
        return begin, replace(self.segments[-1], end=None)


def every(interval: int) -> Schedule:
    if interval < 1:
        raise ValueError(f"`every` should be a positive number of steps. Found `every({interval})`.")
    return Schedule((Segment(interval),))


def within_budget(share: float, at_least: int = LONGEST_INTERVAL) -> Schedule:
    """As often as `share` of the measured step time allows, and at least every `at_least` steps."""
    if not 0 < share <= 1:
        raise ValueError(f"`share` should be a share of the step time in (0, 1]. Found `within_budget({share})`.")
    return Schedule((Segment(at_least, budget=share),))


DEFAULT = every(1).until(100).then(within_budget(0.01)).until(500).then(within_budget(0.005))
