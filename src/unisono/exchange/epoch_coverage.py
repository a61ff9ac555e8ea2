"""One loader's passes over its data, as one rank sees them: what was drawn, how much of it was new, in which order."""

from __future__ import annotations

from typing import Any

from unisono.exchange.sample_draws import SampleDraws

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
