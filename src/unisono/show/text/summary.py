"""The few lines that stand on stderr when a run ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unisono.records import StepRecord
from unisono.records.decision_text import DecisionCounts
from unisono.show.analysis.series import Series, sparkline
from unisono.show.analysis.steering_summary import SteeringSummary

NAME_WIDTH = 26


class Summary:
    """Collects what the closing lines need, in bounded memory."""

    def __init__(self, workers: int, ranks: Sequence[int] = ()) -> None:
        """
        :param ranks: The launcher's numbers of the workers, where they are not 0, 1, 2...
        """
        self.workers = workers
        self.ranks = ranks or range(workers)
        self.steering, self.decision_counts = SteeringSummary(), DecisionCounts()
        self.guarded = False
        self.steps = 0
        self.heard = 0
        self.skipped = 0
        self.listening_cost: float | None = None
        self.effective_workers: float | None = None
        self.loss = Series()
        self.loss_std = Series()
        self.norm = Series()
        self.norm_cv = Series()
        self.cosine = Series()
        self.expected = Series()

    def add(self, record: StepRecord) -> None:
        self.steps += 1
        self.heard += record.heard
        self.skipped += record.skipped
        self.steering.add(record)
        self.listening_cost = record.listening_cost
        self.effective_workers = record.effective_workers or self.effective_workers
        self.loss.add(record.loss_mean)
        self.loss_std.add(record.loss_std)
        self.norm.add(record.grad_norm)
        self.norm_cv.add(record.grad_norm_cv)
        self.cosine.add(record.cos_mean)
        self.expected.add(record.cos_expected)

    def lines(self) -> list[str]:
        rows = [
            _row("loss", self.loss),
            _row("loss dispersion (std)", self.loss_std),
            _row("gradient norm", self.norm),
            _row("norm dispersion (cv)", self.norm_cv),
            _row("direction consistency", self.cosine),
            _row("  expected from noise", self.expected),
        ]
        if self.steering.steps:
            rows.append(f"  {'steering':<{NAME_WIDTH}} {self.steering.words(self.ranks)}")
        idle = ["the guard had nothing to do"] if self.guarded else []
        guarded = [f"the guard {self.decision_counts.words()}"] if self.decision_counts.decided else idle
        return [self._headline(), *(row for row in rows if row), *guarded]

    def _headline(self) -> str:
        parts = [f"{_count(self.steps, 'step')}, {_count(self.workers, 'worker')}, {_count(self.heard, 'step')} heard"]
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        if self.effective_workers is not None:
            parts.append(f"{self.effective_workers:.1f} effective workers")
        if self.listening_cost is not None:
            parts.append(f"listening took {100 * self.listening_cost:.2g} % of the step time")
        return ", ".join(parts)


def _row(name: str, series: Series) -> str:
    values = series.values
    if not values:
        return ""
    return f"  {name:<{NAME_WIDTH}} {_number(values[0]):>9} → {_number(values[-1]):<9} {sparkline(values)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _number(value: float) -> str:
    return f"{value:.3g}" if value == 0 or 1e-3 <= math.fabs(value) < 1e5 else f"{value:.2e}"
