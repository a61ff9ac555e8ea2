"""One loader's passes over its data, as one rank sees them: what was drawn, how much of it was new, in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unisono.sketch.fingerprint import splitmix64

LONG_ORDER = 32
"""Samples in the same order as before that cannot be chance."""


class EpochCoverage:
    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch = -1
        self.dataset = 0
        self.has_news = False
        """Something was drawn since the last message."""

        self._batches = 0
        self._draws = SampleDraws()
        self._order: list[int] = []
        self._last_order: list[int] = []
        self._facts: dict[str, str] = {}

    def begin(self, facts: dict[str, str], dataset: int) -> dict[str, str]:
        """A new pass; the facts to compare with other ranks'."""
        self.epoch += 1
        self.dataset = dataset
        self._last_order = self._order
        self._batches, self._draws, self._order = 0, SampleDraws(), []
        self._facts = facts
        return {**facts, "number": str(self.number), "pass": str(self.epoch)}

    def add(self, indices: list[int]) -> None:
        self._batches += 1
        self.has_news = True
        self._draws.add(indices)
        if len(self._order) < LONG_ORDER * 8:
            self._order += indices

    def message(self, step: int, complete: bool, evaluated: SampleDraws) -> dict[str, Any] | None:
        """What to tell of the pass; nothing where indices are unknown."""
        if not self._draws.drawn or not (self.has_news or complete):
            return None
        self.has_news = False
        ending = "whole" if complete else str(step)
        return {
            "kind": "coverage",
            "key": f"coverage/{self.number}/{self.epoch}/{ending}",
            "step": step,
            "loader": self.number,
            "epoch": self.epoch,
            "complete": complete,
            "draws": self._draws.as_message(),
            "evaluated": evaluated.as_message(),
            "dataset": int(self._facts["dataset"]) if "dataset" in self._facts else None,
            "repeated": self._repeated(),
        }

    def _repeated(self) -> bool | None:
        """The order is the last pass's, long enough and not simply counting up."""
        length = min(len(self._order), len(self._last_order))
        if length < LONG_ORDER or self._batches < 2:
            return None
        order = self._order[:length]
        return order == self._last_order[:length] and order != sorted(order)


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
