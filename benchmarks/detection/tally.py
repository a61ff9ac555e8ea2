"""Many outcomes as few rows: by fault, setting, number of workers and schedule."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, sqrt
from statistics import median
from typing import Any

from benchmarks.detection.outcome import Outcome

from unisono.lab.faults.catalogue import FAULTS


@dataclass
class FaultRow:
    fault: str
    setting: str
    workers: int
    schedule: str
    real: bool
    runs: int = 0
    injected: int = 0
    """Runs in which the fault really happened."""

    readings: list[int] = field(default_factory=list)
    """From the first faulty step to the finding, of the runs in which it was found."""

    steps: list[int] = field(default_factory=list)
    """The same, in steps."""

    right_ranks: int = 0
    right_causes: int = 0
    wrong_rank: int = 0
    """Runs in which somebody was named who did nothing."""

    said: dict[str, int] = field(default_factory=dict)
    """The leading finding of each run, by code; `-` where there was none."""


@dataclass
class HealthyRow:
    setting: str
    workers: int
    schedule: str
    real: bool
    runs: int = 0
    steps: int = 0
    criticals: int = 0
    warnings: int = 0
    said: dict[str, int] = field(default_factory=dict)
    manuals: dict[str, int] = field(default_factory=dict)


@dataclass
class Tally:
    command: str
    versions: dict[str, str]
    faults: list[FaultRow] = field(default_factory=list)
    healthy: list[HealthyRow] = field(default_factory=list)


def fault_rows(outcomes: Iterable[Outcome]) -> list[FaultRow]:
    rows: dict[tuple[Any, ...], FaultRow] = {}
    for one in outcomes:
        if not one.fault:
            continue
        key = (one.fault, one.setting, one.workers, one.schedule, one.real)
        row = rows.setdefault(key, FaultRow(*key))
        row.runs += 1
        row.injected += one.fired > 0
        row.right_ranks += one.right_ranks
        row.right_causes += one.right_cause
        row.wrong_rank += one.wrong_rank
        found = one.found
        if found is not None:
            row.readings = sorted([*row.readings, found.readings])
            row.steps = sorted([*row.steps, found.steps])
        code = found.code if found is not None else one.told[0].code if one.told else "-"
        row.said[code] = row.said.get(code, 0) + 1
    return list(rows.values())


def healthy_rows(outcomes: Iterable[Outcome]) -> list[HealthyRow]:
    """Of healthy runs, and of the steps before a fault."""
    rows: dict[tuple[Any, ...], HealthyRow] = {}
    for one in outcomes:
        key = (one.setting if not one.fault else "before a fault", one.workers, one.schedule, one.real)
        row = rows.setdefault(key, HealthyRow(*key))
        row.runs += 1
        row.steps += one.healthy_steps
        false = one.early if one.fault else (*one.early, *one.told)
        row.criticals += sum(told.severity == "critical" for told in false)
        row.warnings += sum(told.severity == "warning" for told in false)
        row.said = dict(Counter(row.said) + Counter(told.code for told in false))
        row.manuals = dict(Counter(row.manuals) + Counter(one.manuals))
    return list(rows.values())


@dataclass(frozen=True)
class Verdict:
    """All rows of one fault together."""

    fault: str
    runs: int
    found: int
    median: float | None
    nine_of_ten: int | None
    """Readings within which nine of ten of all runs were found; `None` if fewer were."""

    steps: float | None
    """Median from the first faulty step to the finding, in steps."""

    within_goal: int | None
    named: int
    """Found with more than two workers: here the right rank is expected."""

    right_ranks: int
    wrong_rank: int
    right_causes: int
    said: dict[str, int]


def verdicts(rows: Sequence[FaultRow], goals: dict[str, int]) -> list[Verdict]:
    by_fault: dict[str, list[FaultRow]] = defaultdict(list)
    for row in rows:
        by_fault[row.fault].append(row)
    return [_verdict(fault, by_fault[fault], goals.get(fault)) for fault in FAULTS if fault in by_fault]


def _verdict(fault: str, rows: Sequence[FaultRow], goal: int | None) -> Verdict:
    runs = sum(row.runs for row in rows)
    readings = sorted(number for row in rows for number in row.readings)
    enough = -(-9 * runs // 10)
    many = [row for row in rows if row.workers > 2]
    said: Counter[str] = sum((Counter(row.said) for row in rows), Counter())
    return Verdict(
        fault=fault,
        runs=runs,
        found=len(readings),
        median=median(readings) if readings else None,
        nine_of_ten=readings[enough - 1] if len(readings) >= enough else None,
        steps=median(steps) if (steps := [number for row in rows for number in row.steps]) else None,
        within_goal=None if goal is None else sum(number <= goal for number in readings),
        named=sum(len(row.readings) for row in many),
        right_ranks=sum(row.right_ranks for row in many),
        wrong_rank=sum(row.wrong_rank for row in rows),
        right_causes=sum(row.right_causes for row in rows),
        said=dict(said.most_common()),
    )


def most_likely(events: int) -> float:
    """The largest mean number of events that would still give so few in one case of twenty (Poisson)."""
    low, high = float(events), events + 10 * sqrt(events + 3)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _chance_of_at_most(events, middle) > 0.05 else (low, middle)
    return high


def _chance_of_at_most(events: int, mean: float) -> float:
    term = total = exp(-mean)
    for number in range(1, events + 1):
        term *= mean / number
        total += term
    return total
