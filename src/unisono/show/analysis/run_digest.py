"""One run, looked through once for all that a comparison with another one needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike

from unisono.diagnose.engine import Diagnosis
from unisono.records import AttemptRecord, Record, StepRecord
from unisono.records.finding import SEVERITIES, Finding
from unisono.show.analysis.checkup import Checkup, conclude, further_models
from unisono.show.analysis.curves import Curves
from unisono.show.analysis.lost_work import Timesheet
from unisono.show.analysis.run_settings import Settings, settings_of
from unisono.show.analysis.scan_run import RunOverview, look_through
from unisono.show.text.side_by_side import ROWS


@dataclass(frozen=True, slots=True)
class FindingArrival:
    """When a finding was first known, which may be long after it began."""

    step: int
    steps: int
    """Recorded since the attempt had started."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A run as it is compared with another one."""

    checkup: Checkup
    started: float | None
    longest: int
    """Steps of the longest attempt."""

    shown: Mapping[str, FindingArrival]
    """By code, since it was as grave as it became."""

    held: Mapping[str, str]
    """Severities by code, those of symptoms included."""

    last_passed: Mapping[str, int]
    """By code, the last step at which the check found nothing."""

    curves: Curves
    times: Timesheet
    settings: Settings

    def faults(self) -> dict[str, Finding]:
        """The leading findings that are more than information."""
        return {finding.code: finding for finding in self.checkup.findings if finding.at_least("warning")}

    def finding(self, code: str) -> Finding | None:
        """The leading one of this code."""
        return next((finding for finding in self.checkup.findings if finding.code == code), None)

    def explained_by(self, code: str) -> str | None:
        """The leading finding of which this one is a symptom."""
        for finding in self.checkup.findings:
            symptoms = str(finding.evidence.get("symptoms", "")).split("; ")
            if any(symptom.startswith(f"{code} ") for symptom in symptoms):
                return finding.code
        return None


class RunDigest:
    """Gathers it record by record, in little memory."""

    def __init__(self) -> None:
        self._diagnosis, self._times, self._curves = Diagnosis(), Timesheet(), Curves(tuple(ROWS.values()))
        self._steps = self._longest = 0
        self._held: dict[str, str] = {}
        self._shown: dict[str, FindingArrival] = {}

    def see(self, record: Record) -> None:
        self._diagnosis.see(record)
        if isinstance(record, StepRecord):
            self._times.see(record)
            self._curves.see(record)
            self._steps += 1
            self._longest = max(self._longest, self._steps)
        elif isinstance(record, AttemptRecord):
            self._steps = 0
        held = self._diagnosis.held()
        if held != self._held:
            self._notice(held, getattr(record, "step", 0))

    def conclude(self, overview: RunOverview, models: tuple[str, ...] = ()) -> Examined:
        return Examined(
            checkup=conclude(self._diagnosis, overview, models),
            started=overview.started,
            longest=self._longest,
            shown=self._shown,
            held=self._held,
            last_passed=self._diagnosis.last_passed(),
            curves=self._curves,
            times=self._times,
            settings=settings_of(self._diagnosis.run_state, overview),
        )

    def _notice(self, held: dict[str, str], step: int) -> None:
        for code, severity in held.items():
            before = self._held.get(code)
            if before is None or SEVERITIES.index(severity) > SEVERITIES.index(before):
                self._shown[code] = FindingArrival(step, self._steps)
        self._held = held


def look_closely(path: str | PathLike[str], also: Callable[[StepRecord], None] = lambda record: None) -> Examined:
    """Raises `RunFileError` when there is no run.

    :param also: Is handed every step, too.
    """
    look = RunDigest()

    def see(record: Record) -> None:
        look.see(record)
        if isinstance(record, StepRecord):
            also(record)

    return look.conclude(look_through(path, see), further_models(path))
