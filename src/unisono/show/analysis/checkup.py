"""A recorded run, looked through once: what is wrong, what was checked, and where the workers differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from unisono.diagnose.engine import Diagnosis
from unisono.diagnose.heard import Heard
from unisono.diagnose.manuals import ManualThresholds
from unisono.records import Record, StepRecord
from unisono.records.decision_text import DecisionCounts, action_as_dict
from unisono.records.finding import SEVERITIES, Finding
from unisono.records.runfile.lines import RUN_FILE
from unisono.show.analysis.rank_differences import Difference, differences
from unisono.show.analysis.scan_run import RunOverview, look_through

LONG_IDLE = 30.0
"""Seconds without a step that are worth a word: an evaluation may take as long, and so does a job that hangs."""

EXPLAINS_THE_END = ("UN404", "UN502")
"""Findings that say why a job did not end well."""


@dataclass(frozen=True, slots=True)
class Checkup:
    run: str
    steps: int
    workers: int
    last_healthy_step: int | None
    findings: tuple[Finding, ...]
    checks: dict[str, str]
    heard: Heard
    muted: dict[str, int]
    differences: tuple[Difference, ...]
    unreadable_lines: int = 0
    decision_counts: DecisionCounts = field(default_factory=DecisionCounts)
    """What the guard did."""

    further_models: tuple[str, ...] = ()
    """Folders in the run's directory that hold runs of their own."""

    remarks: dict[str, str] = field(default_factory=dict)
    """What rules say beside their findings; no verdict rests on it."""

    manuals: ManualThresholds | None = None
    """Where they were asked for."""

    @property
    def verdict(self) -> str:
        """`critical` or `warning` where such a finding is open, else `broken`, `unheard`, `info` or `healthy`."""
        gravest = max(self.severities("open"), key=SEVERITIES.index, default="healthy")
        if gravest in ("critical", "warning"):
            return gravest
        return "broken" if self.is_broken else "unheard" if self.heard.too_little else gravest

    @property
    def is_broken(self) -> bool:
        """The job did not end well, and nothing explains it."""
        explained = any(one.code in EXPLAINS_THE_END and one.state == "open" for one in self.findings)
        return self.heard.end is not None and not explained and self.decision_counts.stopped_at is None

    @property
    def verdict_text(self) -> str:
        """The one sentence about a run, wherever it is told."""
        grave = _counted([severity for severity in self.severities("open") if severity != "info"])
        stopped, verdict = self.decision_counts.stopped_at, self.verdict
        if stopped is not None:
            told = filter(None, [grave or self._extent(), self.heard.too_little])
            return f"stopped by the guard at step {stopped:,}: {'; '.join(told)}"
        if grave:
            return "; ".join(filter(None, [f"{grave}, {self._healthy_until()}", self.heard.why]))
        over = _counted([severity for severity in self.severities("resolved") if severity != "info"])
        resolved = f"{over} resolved, " if over else ""
        if verdict in ("broken", "unheard"):
            extent = f"; {resolved}{self._extent()}" if self.steps else ""
            return f"{verdict}: {self.heard.why}{extent}"
        word = "healthy" + (" again" if over else "") + (" so far" if self.heard.ended == "running" else "")
        return f"{word}: {resolved}{self._extent()}{self._clauses()}"

    def severities(self, state: str) -> list[str]:
        return [finding.severity for finding in self.findings if finding.state == state]

    def exit_code(self, severity: str, resolved: bool = False) -> int:
        """1 if a finding is as grave as this, else 3 if the job ended badly or was heard too little, else 0.

        :param resolved: Whether findings that are over count as well.
        """
        if any(one.at_least(severity) and (resolved or one.state == "open") for one in self.findings):
            return 1
        return 3 if self.is_broken or self.heard.too_little else 0

    def results(self) -> list[tuple[str, str]]:
        """Every check's code and what came of it, with its remark."""
        return [(code, "; ".join(filter(None, (state, self.remarks.get(code))))) for code, state in self.checks.items()]

    def as_dict(self) -> dict[str, Any]:
        """As `unisono diagnose --json` prints it."""
        return {
            "run": self.run,
            "steps": self.steps,
            "workers": self.workers,
            "verdict": self.verdict,
            "verdict_text": self.verdict_text,
            "heard": self.heard.as_dict(),
            "last_healthy_step": self.last_healthy_step,
            "findings": [strict(finding.as_dict()) for finding in self.findings],
            "checks": self.checks,
            "remarks": self.remarks,
            "muted": self.muted,
            "actions": [strict(action_as_dict(one)) for one in self.decision_counts.newest],
            "unreadable_lines": self.unreadable_lines,
            "further_models": list(self.further_models),
            **({} if self.manuals is None else {"manual_thresholds": strict(self.manuals.as_dicts())}),
        }

    def _healthy_until(self) -> str:
        last = self.last_healthy_step
        return "wrong from the first step" if last is None else f"nothing wrong seen up to step {last:,}"

    def _extent(self) -> str:
        states = list(self.checks.values())
        passed, unseen = states.count("passed"), sum(state.startswith("not-yet-possible") for state in states)
        extent = f"{count(self.steps, 'step')}, {count(self.workers, 'worker')}, {count(passed, 'check')} passed"
        return extent + (f", {unseen} not looked at" if unseen else "")

    def _clauses(self) -> str:
        clauses = ["heard at the optimizer only"] if self.heard.level == "optimizer" else []
        if self.heard.idle >= LONG_IDLE:
            clauses.append(f"no step for {self.heard.idle:.0f} s")
        *first, last = self.heard.not_judged or ("",)
        subjects = [f"{', '.join(first)} and {last}" if first else last] if last else []
        return "".join(f"; {one}" for one in [*clauses, *(f"{one} not judged" for one in subjects)])


def examine(
    path: str | PathLike[str],
    ignore: tuple[str, ...] = (),
    after: int = 0,
    ended: str | None = None,
    manuals: ManualThresholds | None = None,
) -> Checkup:
    """Reads a run, given its directory or file. Raises `RunFileError` when there is none.

    :param after: Attempts up to this one are left out.
    :param ended: How the job ended, where that is known better than from the file.
    :param manuals: The manuals' thresholds, where they are to be told too.
    """
    diagnosis = Diagnosis(ignore)

    def see(record: Record) -> None:
        diagnosis.see(record)
        if manuals is not None and isinstance(record, StepRecord):
            manuals.see(record)

    return replace(conclude(diagnosis, look_through(path, see, after), further_models(path), ended), manuals=manuals)


def conclude(
    diagnosis: Diagnosis, overview: RunOverview, models: tuple[str, ...] = (), ended: str | None = None
) -> Checkup:
    """Of a diagnosis that has seen the run so far.

    :param models: Folders with runs of their own.
    """
    return Checkup(
        run=overview.run,
        steps=diagnosis.run_state.steps,
        workers=diagnosis.run_state.world,
        last_healthy_step=diagnosis.last_healthy_step(),
        findings=tuple(diagnosis.findings()),
        checks=diagnosis.checks(),
        remarks=diagnosis.remarks(),
        heard=diagnosis.heard(ended),
        muted=diagnosis.muted(),
        differences=differences(diagnosis.run_state),
        decision_counts=diagnosis.run_state.decision_counts,
        unreadable_lines=overview.unreadable_lines + diagnosis.left_out,
        further_models=models,
    )


def further_models(path: str | PathLike[str]) -> tuple[str, ...]:
    """A job that trains several models, or one per group of ranks, leaves a folder for each further one."""
    if not Path(path).is_dir():
        return ()
    return tuple(sorted(file.parent.name for file in Path(path).glob(f"*/{RUN_FILE}")))


def strict(content: Any) -> Any:
    """As strict JSON wants it: NaN and infinities as texts."""
    if isinstance(content, dict):
        return {key: strict(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [strict(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _counted(severities: list[str]) -> str:
    """`1 critical finding`, `2 critical and 1 warning findings`; empty without any."""
    counts = [(severities.count(severity), severity) for severity in reversed(SEVERITIES) if severity in severities]
    listed = " and ".join(f"{number} {severity}" for number, severity in counts)
    return f"{listed} finding{'s' * (len(severities) != 1)}" if severities else ""
