"""Which samples were drawn, in bounded memory: those whose hash falls into a part of all hashes, the same everywhere.

Every worker keeps the same samples, if it draws them at all, so counters of several workers can be laid side by side:
a sample that two of them kept was drawn by both, without chance or error. The part is halved whenever too many are
kept (adaptive sampling, Flajolet 1990), and what was kept stands for all in that proportion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unisono.sketch.fingerprint import splitmix64

MOST_KEPT = 1_024


class SampleDraws:
    def __init__(self) -> None:
        self.drawn = 0
        self._level = 0
        self._times: dict[int, int] = {}

    def add(self, samples: Iterable[int]) -> None:
        times = self._times
        for sample in samples:
            self.drawn += 1
            if _is_kept(sample, self._level):
                times[sample] = times.get(sample, 0) + 1
                if len(times) > MOST_KEPT:
                    times = self._thin_out()

    def _thin_out(self) -> dict[int, int]:
        self._level += 1
        self._times = {sample: times for sample, times in self._times.items() if _is_kept(sample, self._level)}
        return self._times

    def as_message(self) -> dict[str, Any]:
        kept = sum(self._times.values())
        once = len(self._times) / kept if kept else 1.0
        return {"drawn": self.drawn, "distinct": self.drawn * once, "level": self._level, "kept": list(self._times)}


def together(counters: Sequence[Mapping[str, Any]]) -> float:
    """How many different samples the counters' owners have drawn; their sum where no two have drawn the same."""
    kept = _at_one_level(counters)
    separately = sum(map(len, kept))
    alone = sum(float(counter["distinct"]) for counter in counters)
    return alone * len(set().union(*kept)) / separately if separately else alone


def share_of(counter: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> float:
    """The share of a counter's samples that others have drawn, too."""
    kept, *rest = _at_one_level([counter, *others])
    return len(kept.intersection(set().union(*rest))) / len(kept) if kept else 0.0


def _at_one_level(counters: Sequence[Mapping[str, Any]]) -> list[set[int]]:
    level = max((counter["level"] for counter in counters), default=0)
    return [{sample for sample in counter["kept"] if _is_kept(sample, level)} for counter in counters]


def _is_kept(sample: int, level: int) -> bool:
    """One in 2^level, by the last bits of a hash."""
    return not level or not splitmix64(sample) & ((1 << level) - 1)
