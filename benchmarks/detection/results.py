"""The benchmark's results: kept as JSON, told as text. Needs no torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.detection.manuals import RULES
from benchmarks.detection.tally import FaultRow, HealthyRow, Tally, Verdict, most_likely, verdicts

from unisono.common.errors import UserError
from unisono.common.terminal import table

FILE = "detection.json"
GOALS = {
    "gradient-x1.1": 1000,
    "gradient-x1.3": 120,
    "gradient-x2": 40,
    "sign-flip": 100,
    "wrong-labels-50": 60,
}
"""Readings within which a fault on one worker should be found."""

ALWAYS = ("gradient-x2", "gradient-x10", "zero-gradient", "wrong-labels-50", "wrong-labels-100")
"""What even a short benchmark has to find every time."""


def save(tally: Tally, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = asdict(tally)
    parts = [f"{json.dumps(key)}: {_rows(value)}" for key, value in content.items()]
    (folder / FILE).write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _rows(value: object) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in value) + "\n]"


def load(folder: Path) -> Tally:
    path = folder / FILE
    try:
        content = json.loads(path.read_text())
        faults = [FaultRow(**row) for row in content["faults"]]
        healthy = [HealthyRow(**row) for row in content["healthy"]]
        return Tally(content["command"], content["versions"], faults, healthy)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"no results in {path} ({error}). Make them with: python -m benchmarks.detection --out {folder}"
        ) from None


def as_text(tally: Tally) -> str:
    parts = []
    for real, schedule, title in (
        (False, "every step", "virtual workers, every step heard"),
        (
            False,
            "default, from step 200",
            "virtual workers, default schedule, from step 200 on (every 10th step heard)",
        ),
        (
            False,
            "default, from step 700",
            "virtual workers, default schedule, from step 700 on (every 20th step heard)",
        ),
        (True, "every step", "real processes"),
    ):
        rows = [row for row in tally.faults if (row.real, row.schedule) == (real, schedule)]
        if rows:
            parts.append(f"== {title}\n{_table(verdicts(rows, GOALS))}")
    if tally.healthy:
        parts.append(f"== healthy\n{_healthy(tally.healthy)}")
    return "\n\n".join(parts)


HEAD = (
    "fault",
    "runs",
    "found",
    "steps",
    "readings",
    "9 of 10",
    "goal",
    "in goal",
    "right rank",
    "wrong rank",
    "cause",
)


def cells(verdict: Verdict) -> list[str]:
    goal = GOALS.get(verdict.fault)
    return [
        verdict.fault,
        str(verdict.runs),
        str(verdict.found),
        "-" if verdict.steps is None else f"{verdict.steps:.0f}",
        "-" if verdict.median is None else f"{verdict.median:.0f}",
        "-" if verdict.nine_of_ten is None else str(verdict.nine_of_ten),
        "" if goal is None else str(goal),
        "" if verdict.within_goal is None else f"{verdict.within_goal}/{verdict.runs}",
        f"{verdict.right_ranks}/{verdict.named}",
        str(verdict.wrong_rank),
        f"{verdict.right_causes}/{verdict.found}",
    ]


def _table(found: Sequence[Verdict]) -> str:
    rows = [list(HEAD), *map(cells, found)]
    return "\n".join(table(rows, "<" + ">" * (len(HEAD) - 1)))


def _healthy(rows: Sequence[HealthyRow]) -> str:
    lines = []
    for real in (False, True):
        own = [row for row in rows if row.real is real]
        steps = sum(row.steps for row in own)
        if not steps:
            continue
        for name, events in (("critical", _sum(own, "criticals")), ("warning", _sum(own, "warnings"))):
            lines.append(
                f"{'real' if real else 'virtual'}: {events} {name} findings in {steps:,} healthy steps: "
                f"{1e6 * events / steps:.2g} per million, with 95 % confidence below {rate_below(events, steps):.3g}"
            )
    alarms = sum((Counter(row.manuals) for row in rows if not row.real), Counter())
    steps = sum(row.steps for row in rows if not row.real)
    if steps:
        lines += ["", "the manuals' thresholds on the same steps, alarms per million:"]
        lines += [f"  {name:<20}{1e6 * alarms[name] / steps:>10,.0f}   {rule}" for name, rule in RULES.items()]
    return "\n".join(lines)


def rate_below(events: int, steps: int) -> float:
    """Events per million steps, at most, with 95 % confidence."""
    return 1e6 * most_likely(events) / steps


def _sum(rows: Sequence[HealthyRow], name: str) -> int:
    return sum(getattr(row, name) for row in rows)


def shortcomings(tally: Tally) -> list[str]:
    """What no benchmark, however short, may show."""
    wrong = [f"{row.fault}: the fault was not injected" for row in tally.faults if row.injected < row.runs]
    wrong += [f"{row.setting}: a critical finding on a healthy run" for row in tally.healthy if row.criticals]
    for row in tally.faults:
        if row.fault in ALWAYS and len(row.readings) < row.runs:
            wrong.append(f"{row.fault}, {row.setting}, {row.workers} workers: not found")
        if row.workers == 2 and row.wrong_rank:
            wrong.append(f"{row.fault}, {row.setting}: somebody was named of two workers")
    return wrong
