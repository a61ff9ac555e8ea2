"""A recorded run, looked through once: what is wrong, what was checked, and where the workers differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from unisono.diagnose.engine import Diagnosis
from unisono.records.decision_text import DecisionCounts, action_as_dict
from unisono.records.finding import SEVERITIES, Finding
from unisono.records.runfile.lines import RUN_FILE
from unisono.show.analysis.rank_differences import Difference, differences
from unisono.show.analysis.scan_run import RunOverview, look_through


@dataclass(frozen=True, slots=True)
class Checkup:
    run: str
    steps: int
    workers: int
    last_healthy_step: int | None
    findings: tuple[Finding, ...]
    checks: dict[str, str]
    muted: dict[str, int]
    differences: tuple[Difference, ...]
    unreadable_lines: int = 0
    decision_counts: DecisionCounts = field(default_factory=DecisionCounts)
    """What the guard did."""

    further_models: tuple[str, ...] = ()
    """Folders in the run's directory that hold runs of their own."""

    @property
    def verdict(self) -> str:
        """The gravest severity of the open findings, or `healthy`."""
        return max(self.severities("open"), key=SEVERITIES.index, default="healthy")

    @property
    def verdict_text(self) -> str:
        grave = _counted([severity for severity in self.severities("open") if severity != "info"])
        stopped = self.decision_counts.stopped_at
        if stopped is not None:
            return f"stopped by the guard at step {stopped:,}: {grave or self._extent()}"
        if grave:
            return f"{grave}, {self._healthy_until()}"
        over = _counted([severity for severity in self.severities("resolved") if severity != "info"])
        return f"healthy again: {over} resolved, {self._extent()}" if over else self._extent("healthy: ")

    def severities(self, state: str) -> list[str]:
        return [finding.severity for finding in self.findings if finding.state == state]

    def reaches(self, severity: str) -> bool:
        """Whether any finding, also one that is resolved, is as grave as this."""
        return any(finding.at_least(severity) for finding in self.findings)

    def missing(self) -> dict[str, list[str]]:
        """What has not been seen yet, and the codes that need it."""
        needs: dict[str, list[str]] = {}
        for code, state in self.checks.items():
            if state.startswith("not-yet-possible"):
                needs.setdefault(state.partition(": needs ")[2], []).append(code)
        return needs

    def as_dict(self) -> dict[str, Any]:
        """As `unisono diagnose --json` prints it."""
        return {
            "run": self.run,
            "steps": self.steps,
            "workers": self.workers,
            "verdict": self.verdict,
            "verdict_text": self.verdict_text,
            "last_healthy_step": self.last_healthy_step,
            "findings": [strict(finding.as_dict()) for finding in self.findings],
            "checks": self.checks,
            "muted": self.muted,
            "actions": [strict(action_as_dict(one)) for one in self.decision_counts.newest],
            "unreadable_lines": self.unreadable_lines,
            "further_models": list(self.further_models),
        }

    def _healthy_until(self) -> str:
        last = self.last_healthy_step
        return "wrong from the first step" if last is None else f"nothing wrong seen up to step {last:,}"

    def _extent(self, healthy: str = "") -> str:
        passed = sum(state == "passed" for state in self.checks.values())
        extent = f"{count(self.steps, 'step')}, {count(self.workers, 'worker')}"
        if not passed and not self.findings:
            return f"nothing found, but nothing could be checked yet: {extent}"
        return f"{healthy}{extent}, {count(passed, 'check')} passed"


def examine(path: str | PathLike[str], ignore: tuple[str, ...] = (), after: int = 0) -> Checkup:
    """Reads a run, given its directory or file. Raises `RunFileError` when there is none.

    :param after: Attempts up to this one are left out.
    """
    diagnosis = Diagnosis(ignore)
    return conclude(diagnosis, look_through(path, diagnosis.see, after), further_models(path))


def conclude(diagnosis: Diagnosis, overview: RunOverview, models: tuple[str, ...] = ()) -> Checkup:
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
        muted=diagnosis.muted(),
        differences=differences(diagnosis.run_state),
        decision_counts=diagnosis.run_state.decision_counts,
        unreadable_lines=overview.unreadable_lines,
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
