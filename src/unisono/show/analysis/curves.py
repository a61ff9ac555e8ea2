"""The measures of a run by step, in little memory however long it is, so that two runs can be cut to equal steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from unisono.records import StepRecord

MOST_STRETCHES = 256


@dataclass(slots=True)
class Level:
    """Sums and counts of each measure over stretches of steps, all equally long."""

    stretch: int
    last: int = -1
    """The newest step in it."""

    sums: dict[int, list[float]] = field(default_factory=dict)
    counts: dict[int, list[float]] = field(default_factory=dict)
    """Both by number of the stretch, a value per measure."""

    def coarser(self) -> Level:
        """The same over stretches that are twice as long."""
        merged = Level(2 * self.stretch, self.last)
        for stretch, sums in self.sums.items():
            _add(merged.sums, stretch // 2, sums)
            _add(merged.counts, stretch // 2, self.counts[stretch])
        return merged

    def forget_from(self, step: int) -> None:
        """A stretch that began before it is kept whole."""
        kept = [stretch for stretch in self.sums if stretch * self.stretch < step]
        self.sums = {stretch: self.sums[stretch] for stretch in kept}
        self.counts = {stretch: self.counts[stretch] for stretch in kept}
        self.last = min(self.last, step - 1)


class Curves:
    """Stretches double when there are too many; how the run began stays known as finely as it was before that."""

    def __init__(self, measures: Sequence[str]) -> None:
        self._measures = tuple(measures)
        self._levels = [Level(1)]
        self._attempt: int | None = None

    def see(self, record: StepRecord) -> None:
        if record.attempt != self._attempt:
            self._attempt = record.attempt
            self._go_back_to(record.step)
        level = self._levels[-1]
        values = [getattr(record, measure) for measure in self._measures]
        known = [value is not None and math.isfinite(value) for value in values]
        numbers = [value if is_known else 0.0 for value, is_known in zip(values, known, strict=True)]
        _add(level.sums, record.step // level.stretch, numbers)
        _add(level.counts, record.step // level.stretch, known)
        level.last = max(level.last, record.step)
        if len(level.sums) > MOST_STRETCHES:
            self._levels.append(level.coarser())

    @property
    def steps(self) -> range:
        """From the first to the newest."""
        return range(min(self._levels[0].sums, default=0), self._levels[-1].last + 1)

    def over(self, steps: range) -> dict[str, list[float]]:
        """The means of each measure over the stretches that begin in these steps, where it is known."""
        level = next((level for level in self._levels if level.last >= steps[-1]), self._levels[-1]) if steps else None
        if level is None:
            return {measure: [] for measure in self._measures}
        stretches = [stretch for stretch in sorted(level.sums) if stretch * level.stretch in steps]
        return {
            measure: [
                level.sums[stretch][nth] / level.counts[stretch][nth]
                for stretch in stretches
                if level.counts[stretch][nth]
            ]
            for nth, measure in enumerate(self._measures)
        }

    def _go_back_to(self, step: int) -> None:
        """An attempt takes the place of all that earlier ones did from its first step on."""
        while len(self._levels) > 1 and self._levels[-2].last >= step:
            self._levels.pop()
        self._levels[-1].forget_from(step)


def _add(table: dict[int, list[float]], key: int, values: Sequence[float]) -> None:
    old = table.get(key)
    table[key] = list(values) if old is None else [one + other for one, other in zip(old, values, strict=True)]
