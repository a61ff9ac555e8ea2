"""Everything the page tells, collected record by record: from a file at once, or while a job writes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from os import PathLike

from unisono.diagnose.engine import Diagnosis
from unisono.records import AttemptRecord, DecisionRecord, EndRecord, Record, RunRecord, StepRecord, ValidationRecord
from unisono.records.decision_text import KEPT, DecisionCounts, actions_of
from unisono.records.finding import Finding
from unisono.show.analysis.checkup import Checkup, conclude, further_models
from unisono.show.analysis.lost_work import Loss, Timesheet, lost_work
from unisono.show.analysis.scaling import NoiseReadings, Outlook, outlook
from unisono.show.analysis.scan_run import RunOverview, look_through
from unisono.show.analysis.steering_summary import SteeringSummary
from unisono.show.page.snapshots import MatrixSnapshots
from unisono.show.page.timeline import Timeline

FRESH_SECONDS = 1.0


class PageModel:
    def __init__(self) -> None:
        self.diagnosis = Diagnosis()
        self.readings, self.times = NoiseReadings(), Timesheet()
        self.timeline, self.snapshots = Timeline(), MatrixSnapshots()
        self.run: RunRecord | None = None
        self.overview = RunOverview("", "", None, 0)
        self.attempt: AttemptRecord | None = None
        self.attempts = 0
        self.acts: list[DecisionRecord] = []
        """What the guard did at steps whose place no later attempt has taken."""

        self.end: EndRecord | None = None
        """Of the newest attempt; `None` while it goes on, or when it was killed."""

        self.heard = self.skipped = self.skipped_by_guard = 0
        self.steering = SteeringSummary()
        """Of the newest attempt, as what is skipped is."""

        self.listening_cost: float | None = None
        self.began: float | None = None
        self.newest = 0.0
        """The times of the first and of the newest record."""

        self.further_models: tuple[str, ...] = ()
        self._checkup: Checkup | None = None
        self._concluded = 0.0
        self._attempt_of_steps: int | None = None

    def see(self, record: Record) -> None:
        self._checkup = None
        self.diagnosis.see(record)
        if isinstance(record, StepRecord):
            self._see_step(record)
        elif isinstance(record, AttemptRecord):
            self.attempt, self.attempts, self.end = record, self.attempts + 1, None
            self.skipped, self.skipped_by_guard, self.steering = 0, 0, SteeringSummary()
        elif isinstance(record, RunRecord):
            self.run = self.run or record
            self.overview = RunOverview(self.run.run, self.run.script, self.run.time, 0)
        elif isinstance(record, EndRecord):
            self.end = record
        elif isinstance(record, DecisionRecord):
            self._see_decision(record)
        elif isinstance(record, ValidationRecord):
            self.timeline.see_validation(record)
        self._tell_time(getattr(record, "time", 0.0))

    def checkup(self) -> Checkup:
        # A job that has been running may have been killed since.
        old = time.monotonic() - self._concluded > FRESH_SECONDS
        if self._checkup is None or (old and self._checkup.heard.ended == "running"):
            self._checkup = conclude(self.diagnosis, self.overview, self.further_models)
            self._concluded = time.monotonic()
        return self._checkup

    def outlook(self) -> Outlook | None:
        return None if self.readings.missing() else outlook(self.readings)

    def losses(self) -> list[Loss]:
        return lost_work(self.checkup().findings, self.times)

    @property
    def decision_counts(self) -> DecisionCounts:
        """What the guard did in the whole run."""
        return self.diagnosis.run_state.decision_counts

    @property
    def ranks(self) -> tuple[int, ...]:
        """The launcher's numbers of the workers."""
        return self.diagnosis.run_state.ranks(range(self.timeline.workers))

    @property
    def ranks_are_rows(self) -> bool:
        return self.ranks == tuple(range(self.timeline.workers))

    def last_step_of(self, finding: Finding) -> int:
        """An open one lasts to the newest step, unless a restart went back to before it began."""
        newest = self.timeline.last_step if finding.state == "open" else finding.last_step
        return max(newest, finding.first_step)

    def rows_of(self, ranks: Sequence[int]) -> list[int]:
        return [row for row, rank in enumerate(self.ranks) if rank in set(ranks)]

    def _see_step(self, record: StepRecord) -> None:
        if record.attempt != self._attempt_of_steps:
            self._attempt_of_steps = record.attempt
            self.acts = [act for act in self.acts if act.attempt == record.attempt or act.step < record.step]
        self.readings.see(record)
        self.times.see(record)
        self.timeline.see(record)
        self.snapshots.see(record)
        self.heard += record.heard
        self.skipped = record.skipped_steps
        self.steering.add(record)
        if record.listening_cost is not None:
            self.listening_cost = record.listening_cost

    def _see_decision(self, record: DecisionRecord) -> None:
        self.acts = [*self.acts[-KEPT + 1 :], record]
        self.skipped_by_guard += not record.dry and "skip" in actions_of(record)

    def _tell_time(self, time: float) -> None:
        if time > 0:
            self.began = time if self.began is None else self.began
            self.newest = max(self.newest, time)


def read_page_model(path: str | PathLike[str]) -> PageModel:
    """Raises `RunFileError` where there is no run."""
    page_model = PageModel()
    page_model.overview = look_through(path, page_model.see)
    page_model.further_models = further_models(path)
    return page_model
