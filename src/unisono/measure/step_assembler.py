"""Puts the ranks' reports of a step together; gives complete steps out in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from unisono.listen.messages import AllRanksStep, RankStep
from unisono.sketch.wire_format import Directions

PATIENCE = 10.0
"""Seconds a step waits for a rank before it is written down without it."""

MOST_OPEN_STEPS = 512
MOST_HELD_BYTES = 1 << 29
"""Of directions that wait for their steps; the oldest go first, and their steps are written down without them."""

SILENT_AFTER = 3
"""Steps in a row without a rank's report after which nobody waits for it any more."""


@dataclass(slots=True)
class _OpenStep:
    opened: float
    signals: dict[int, RankStep] = field(default_factory=dict)
    awaits_directions: bool = False
    directions: Directions | None = None


class StepAssembler:
    def __init__(self, world: int) -> None:
        self._world = world
        self._open_steps: dict[int, _OpenStep] = {}
        self._missed = [0] * world
        self._closed = -1
        self.expected: set[int] = set()
        self.late = 0
        """Reports of steps that had been written down without them."""

    def register(self, rank: int) -> None:
        self.expected.add(rank)

    @property
    def open(self) -> bool:
        """Whether a step waits for somebody."""
        return bool(self._open_steps)

    def silent(self) -> list[int]:
        return [rank for rank in sorted(self.expected) if self._missed[rank] >= SILENT_AFTER]

    def add_signal(self, rank: int, signal: RankStep) -> None:
        self._missed[rank] = 0
        if signal.step <= self._closed:
            self.late += 1
        else:
            self._open_step(signal.step).signals[rank] = signal

    def await_directions(self, step: int) -> None:
        if step > self._closed:
            self._open_step(step).awaits_directions = True

    def add_directions(self, step: int, directions: Directions) -> None:
        """The gathered sketches of `step`."""
        open_step = self._open_steps.get(step)
        if open_step is not None:
            open_step.awaits_directions = False
            open_step.directions = directions
            self._let_go_of_oldest()

    def lose_directions(self) -> None:
        for open_step in self._open_steps.values():
            open_step.awaits_directions = False

    def complete(self, plain_mean: bool, everything: bool = False) -> Iterator[AllRanksStep]:
        """Steps that all have reported, or that have waited long enough, oldest first."""
        for step in sorted(self._open_steps):
            if not (everything or self._is_complete(step)):
                return
            yield self._close_step(step, plain_mean)

    def _open_step(self, step: int) -> _OpenStep:
        return self._open_steps.setdefault(step, _OpenStep(time.monotonic()))

    def _let_go_of_oldest(self) -> None:
        with_directions = [
            self._open_steps[step] for step in sorted(self._open_steps) if self._open_steps[step].directions is not None
        ]
        held = sum(_bytes(open_step.directions) for open_step in with_directions)
        for open_step in with_directions:
            if held > MOST_HELD_BYTES:
                held -= _bytes(open_step.directions)
                open_step.directions = None

    def _is_complete(self, step: int) -> bool:
        open_step = self._open_steps[step]
        waited_for = self.expected.difference(self.silent())
        if waited_for <= open_step.signals.keys() and not open_step.awaits_directions:
            return True
        return time.monotonic() - open_step.opened > PATIENCE or len(self._open_steps) > MOST_OPEN_STEPS

    def _close_step(self, step: int, plain_mean: bool) -> AllRanksStep:
        open_step = self._open_steps.pop(step)
        self._closed = max(self._closed, step)
        missing = self.expected.difference(open_step.signals)
        for rank in missing:
            self._missed[rank] += 1
        signal_W = tuple(open_step.signals.get(rank) for rank in range(self._world))
        directions = open_step.directions or Directions()
        return AllRanksStep(step, signal_W, plain_mean=plain_mean and not missing, **directions._asdict())


def _bytes(directions: Directions | None) -> int:
    return sum(part.nbytes for part in directions or () if part is not None)
