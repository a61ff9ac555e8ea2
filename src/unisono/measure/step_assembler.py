"""Rank 0's book of who has reported which step; gives complete steps out in order."""

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
        self._pages: dict[int, _OpenStep] = {}
        self._missed = [0] * world
        self._closed = -1
        self.expected: set[int] = set()
        self.late = 0
        """Reports of steps that had been written down without them."""

    def greet(self, rank: int) -> None:
        self.expected.add(rank)

    @property
    def open(self) -> bool:
        """Whether a step waits for somebody."""
        return bool(self._pages)

    def silent(self) -> list[int]:
        return [rank for rank in sorted(self.expected) if self._missed[rank] >= SILENT_AFTER]

    def add_signal(self, rank: int, signal: RankStep) -> None:
        self._missed[rank] = 0
        if signal.step <= self._closed:
            self.late += 1
        else:
            self._page(signal.step).signals[rank] = signal

    def await_directions(self, step: int) -> None:
        if step > self._closed:
            self._page(step).awaits_directions = True

    def add_directions(self, step: int, directions: Directions) -> None:
        """The gathered sketches of `step`."""
        page = self._pages.get(step)
        if page is not None:
            page.awaits_directions = False
            page.directions = directions
            self._let_go_of_oldest()

    def lose_directions(self) -> None:
        for page in self._pages.values():
            page.awaits_directions = False

    def complete(self, plain_mean: bool, everything: bool = False) -> Iterator[AllRanksStep]:
        """Steps that all have reported, or that have waited long enough, oldest first."""
        for step in sorted(self._pages):
            if not (everything or self._is_complete(step)):
                return
            yield self._close_page(step, plain_mean)

    def _page(self, step: int) -> _OpenStep:
        return self._pages.setdefault(step, _OpenStep(time.monotonic()))

    def _let_go_of_oldest(self) -> None:
        holding = [self._pages[step] for step in sorted(self._pages) if self._pages[step].directions is not None]
        held = sum(_bytes(page.directions) for page in holding)
        for page in holding:
            if held > MOST_HELD_BYTES:
                held -= _bytes(page.directions)
                page.directions = None

    def _is_complete(self, step: int) -> bool:
        page = self._pages[step]
        waited_for = self.expected.difference(self.silent())
        if waited_for <= page.signals.keys() and not page.awaits_directions:
            return True
        return time.monotonic() - page.opened > PATIENCE or len(self._pages) > MOST_OPEN_STEPS

    def _close_page(self, step: int, plain_mean: bool) -> AllRanksStep:
        page = self._pages.pop(step)
        self._closed = max(self._closed, step)
        missing = self.expected.difference(page.signals)
        for rank in missing:
            self._missed[rank] += 1
        signal_W = tuple(page.signals.get(rank) for rank in range(self._world))
        directions = page.directions or Directions()
        return AllRanksStep(step, signal_W, plain_mean=plain_mean and not missing, **directions._asdict())


def _bytes(directions: Directions | None) -> int:
    return sum(part.nbytes for part in directions or () if part is not None)
