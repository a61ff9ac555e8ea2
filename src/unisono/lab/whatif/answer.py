"""What a replay comes to: which value is worth a try, and which would have left out the workers that findings name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unisono.diagnose.engine import Diagnosis
from unisono.lab.whatif.question import Question
from unisono.lab.whatif.replay import GramReadings, GridRow, replay
from unisono.records import Record, StepRecord
from unisono.records.finding import Finding
from unisono.show.analysis.scan_run import look_through

ENOUGH = 100
"""Readings below which one step in a hundred cannot be told."""

KEPT, SKIPPED = 0.95, 0.01
"""What is asked of a value that is recommended: it keeps at least this share and skips less than that."""

LEFT_OUT = 0.9


@dataclass(frozen=True)
class Named:
    """Workers that a finding names, and the mildest value that would have left them out."""

    code: str
    ranks: tuple[int, ...]
    first_step: int
    value: float | None
    rate: float | None
    """Share of the steps since then at which it leaves them out."""


@dataclass(frozen=True)
class WhatIfAnswer:
    run: str
    path: str
    question: Question
    workers: int
    readings: int
    steps: int
    first_step: int
    last_step: int
    ranks: tuple[int, ...]
    rows: tuple[GridRow, ...]
    named: tuple[Named, ...]
    recommended: float | None

    @property
    def worth_a_try(self) -> float | None:
        """Recommended, or what was asked for."""
        return self.question.given if self.recommended is None else self.recommended

    def most_rejected(self, row: GridRow) -> tuple[int, float] | None:
        """Its rank and how often; None where nobody is rejected."""
        keep_rates = row.keep_rates()
        least = min(keep_rates, default=1.0)
        return (self.ranks[keep_rates.index(least)], 1 - least) if least < 1 else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "weighting": self.question.weighting.name,
            "option": self.question.option,
            "workers": self.workers,
            "readings": self.readings,
            "steps": self.steps,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "rows": [self._row(row) for row in self.rows],
            "named": [vars(one) | {"ranks": list(one.ranks)} for one in self.named],
            "recommended": self.recommended,
        }

    def _row(self, row: GridRow) -> dict[str, Any]:
        rank, rate = self.most_rejected(row) or (None, None)
        return {
            "value": row.value,
            "weighting": self.question.text(row.value),
            "keep_rate": keep_rate(row),
            "skipped": row.skipped,
            "effective_workers": row.effective_workers,
            "cosine_with_mean": row.cosine,
            "most_rejected_rank": rank,
            "most_rejected_rate": rate,
        }


def look_back(path: str, question: Question) -> WhatIfAnswer:
    """Raises UserError where the run has nothing to replay."""
    readings, diagnosis = GramReadings(), Diagnosis()

    def see(record: Record) -> None:
        diagnosis.see(record)
        if isinstance(record, StepRecord):
            readings.see(record)

    overview = look_through(path, see)
    readings.check()
    ranks = diagnosis.run_state.ranks(range(readings.workers))
    rows = replay(readings.kept, question)
    by_strictness = sorted(rows, key=lambda row: question.strictest_first().index(row.value))
    grave = [one for one in diagnosis.findings() if one.at_least("warning") and _names_a_minority(one, ranks)]
    return WhatIfAnswer(
        run=overview.run,
        path=path,
        question=question,
        workers=readings.workers,
        readings=len(readings.kept),
        steps=readings.steps,
        first_step=readings.kept[0].step,
        last_step=readings.kept[-1].step,
        ranks=ranks,
        rows=tuple(rows),
        named=tuple(_named(finding, by_strictness, ranks) for finding in grave),
        recommended=_recommended(question, by_strictness, ranks, grave),
    )


def keep_rate(row: GridRow) -> float | None:
    rates = row.keep_rates()
    return sum(rates) / len(rates) if rates else None


def _names_a_minority(finding: Finding, ranks: Sequence[int]) -> bool:
    """A filter can leave out the few, not the many."""
    return 0 < len(finding.ranks) < len(ranks) / 2 and set(finding.ranks) <= set(ranks)


def _recommended(
    question: Question, by_strictness: Sequence[GridRow], ranks: Sequence[int], grave: Sequence[Finding]
) -> float | None:
    """The strictest value that leaves healthy workers alone: those whom no finding names."""
    blamed = {rank for finding in grave for rank in finding.ranks}
    others = [worker for worker, rank in enumerate(ranks) if rank not in blamed]
    fitting = [row for row in by_strictness if question.filters(row.value) and _mild(row, others)]
    return fitting[0].value if fitting and len(fitting[0].weight_RW) >= ENOUGH else None


def _mild(row: GridRow, workers: Sequence[int]) -> bool:
    rates = row.keep_rates()
    if not rates or row.skipped >= SKIPPED * len(row.weight_RW):
        return False
    return sum(rates[worker] for worker in workers) >= KEPT * len(workers)


def _named(finding: Finding, by_strictness: Sequence[GridRow], ranks: Sequence[int]) -> Named:
    end = float(finding.last_step) if finding.state == "resolved" else float("inf")
    for row in reversed(by_strictness):
        rates = row.keep_rates(finding.first_step, end)
        if rates:
            rate = sum(1 - rates[ranks.index(rank)] for rank in finding.ranks) / len(finding.ranks)
            if rate >= LEFT_OUT:
                return Named(finding.code, finding.ranks, finding.first_step, row.value, rate)
    return Named(finding.code, finding.ranks, finding.first_step, None, None)
