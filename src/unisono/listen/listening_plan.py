"""The plan all ranks share: the schedule, plus what rank 0 announced a few steps ahead.

Whether a step is heard depends on its number and on announcements alone, never on what one rank saw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unisono.common.schedule import ASSUMED_COST, WINDOW, Schedule

AHEAD, AHEAD_SECONDS = 8, 2.0
"""Announcements take effect this much later, whichever is longer, so that every rank has read them by then."""


WHOLE_AUDITS = 3
"""Readings at the start, and at the start of a burst, in which the whole model is compared."""


@dataclass(frozen=True)
class Announcement:
    """From step `start` on: what a reading costs, a burst up to `end`, or a new side channel.

    At step `start`: a comparison of every parameter on its own (`detail`). At once: what a rank remembers is asked for.
    """

    start: int
    cost: float | None = None
    """In step times: segments with a budget have their intervals from it."""

    end: int | None = None
    era: int | None = None
    detail: bool = False
    audit_of: int | None = None
    """Every rank tells the fingerprints of single parameters that it took after this step."""

    batch_of: int | None = None
    """The worker `worker` tells what it read at this step."""

    worker: int = 0
    keep: bool = False
    """Every rank writes its last steps to a file."""


class ListeningPlan:
    def __init__(self, schedule: Schedule, first_step: int = 0) -> None:
        self._schedule = schedule
        self._first_step = first_step
        self._costs: list[Announcement] = []
        self._bursts: list[Announcement] = []
        self._details: list[int] = []

    def apply(self, announcement: Announcement) -> None:
        if announcement.cost is not None:
            self._costs = [*self._costs[-3:], announcement]
        if announcement.end is not None:
            # Old ones are never asked about again: the lists stay short over a long run.
            self._bursts = [*self._bursts[-3:], announcement]
        if announcement.detail:
            self._details = [*self._details[-3:], announcement.start]

    def hears(self, step: int) -> bool:
        if self._burst(step) is not None:
            return True
        begin, interval = self._stretch(step)
        return (step - begin) % interval == 0

    def window(self, step: int) -> int:
        """First step of the window of readings that share one sketch seed."""
        burst = self._burst(step)
        if burst is not None:
            return burst.start + (step - burst.start) // WINDOW * WINDOW
        begin, interval = self._stretch(step)
        return begin + (step - begin) // (WINDOW * interval) * (WINDOW * interval)

    def audit(self, step: int, parts: int) -> tuple[int, int]:
        """Which part of how many is compared bit for bit at a heard step: everything at first, then one by one."""
        reading = self.reading(step)
        return (0, 1) if reading < WHOLE_AUDITS else (reading % parts, parts)

    def detail(self, step: int) -> bool:
        return step in self._details

    def reading(self, step: int) -> int:
        """How many readings lie between `step` and where it began to be listened to as often as now."""
        burst = self._burst(step)
        if burst is not None:
            return step - burst.start
        begin, interval = self._stretch(step)
        before = WHOLE_AUDITS if begin > self._first_step else 0
        return before + (step - begin) // interval

    @property
    def needs_cost(self) -> bool:
        return any(segment.budget is not None for segment in self._schedule.segments)

    def in_burst(self, step: int) -> bool:
        return self._burst(step) is not None

    def _burst(self, step: int) -> Announcement | None:
        for burst in self._bursts:
            if burst.start <= step < (burst.end or 0):
                return burst
        return None

    def _stretch(self, step: int) -> tuple[int, int]:
        begin, segment = self._schedule.segment_at(step - self._first_step)
        begin += self._first_step
        if segment.budget is None:
            return begin, segment.interval
        for announced in reversed(self._costs):
            if announced.start <= step and announced.cost is not None:
                return max(begin, announced.start), segment.interval_at(announced.cost)
        return begin, segment.interval_at(ASSUMED_COST)


SLOW_AT_FIRST = WHOLE_AUDITS + 2
"""Steps that tell nothing about later ones: buffers are made, kernels chosen, the whole model compared."""

FEWEST_READINGS = 16


class Cost:
    """Rank 0's measure of what a reading costs, in step times."""

    def __init__(self) -> None:
        self.steps = 0
        self._step_seconds = _Average()
        self._reading_seconds = _Average()

    @property
    def value(self) -> float | None:
        step, reading = self._step_seconds.value, self._reading_seconds.value
        if not step or reading is None or self._reading_seconds.count < FEWEST_READINGS:
            return None
        return reading / step

    def observe(self, step_seconds: float, reading_seconds: float, heard: bool) -> None:
        self.steps += 1
        if self.steps <= SLOW_AT_FIRST:
            return
        self._step_seconds.add(step_seconds)
        if heard:
            self._reading_seconds.add(reading_seconds)

    def ahead(self) -> int:
        """Steps from the newest one to where an announcement may take effect."""
        return max(AHEAD, math.ceil(AHEAD_SECONDS / max(1e-4, self._step_seconds.value or AHEAD_SECONDS)))


class _Average:
    """Plain average of the first 50 values, exponential after that."""

    def __init__(self) -> None:
        self.value: float | None = None
        self.count = 0

    def add(self, number: float) -> None:
        self.count = min(50, self.count + 1)
        self.value = number if self.value is None else self.value + (number - self.value) / self.count
