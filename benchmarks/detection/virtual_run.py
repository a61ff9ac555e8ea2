"""One virtual job as unisono hears it: roll calls in, findings out, through the product's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from benchmarks.detection.manuals import Manuals
from benchmarks.detection.setting import Setting
from benchmarks.detection.virtual_workers import Fleet

from unisono.common.schedule import BURST
from unisono.diagnose.engine import Diagnosis
from unisono.lab.faults.injections import Injection
from unisono.listen.listening_plan import AHEAD, Announcement, ListeningPlan
from unisono.listen.messages import AllRanksStep
from unisono.measure.adapt_schedule import STEPS_BETWEEN_SUSPICIONS
from unisono.measure.step_record import Memory, measure
from unisono.records import AttemptRecord, Record, StepRecord, WorkerFacts
from unisono.records.finding import Finding


@dataclass(frozen=True, slots=True)
class News:
    """A finding when it was first told, or became graver."""

    step: int
    readings: int
    """Readings so far."""

    finding: Finding


@dataclass
class VirtualRun:
    setting: Setting
    injection: Injection
    groups: tuple[str, ...]
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    manuals: Manuals = field(default_factory=Manuals)
    news: list[News] = field(default_factory=list)
    readings: int = 0
    readings_before: int = 0
    """Readings before the injection began."""

    records: list[Record] | None = None
    """All that was heard, where it is to be kept."""

    _memory: Memory = field(default_factory=Memory)
    _attempt: int = 0
    _suspected_at: int = -STEPS_BETWEEN_SUSPICIONS

    def __post_init__(self) -> None:
        self._plan = ListeningPlan(self.setting.schedule)

    def window(self, step: int) -> int | None:
        """First step of the window of readings that `step` belongs to; none where nobody listens."""
        return self._plan.window(step) if self._plan.hears(step) else None

    @torch.inference_mode()
    def see(self, all_ranks: AllRanksStep) -> None:
        if all_ranks.step in (0, self.setting.resume_at):
            self._begin_attempt(all_ranks)
        self.judge(measure(all_ranks, self._memory, self._attempt))

    def judge(self, record: Record) -> None:
        if self.records is not None:
            self.records.append(record)
        self.diagnosis.see(record)
        if not isinstance(record, StepRecord):
            return
        self.readings += record.heard
        if record.step < self.injection.starts_at:
            self.readings_before = self.readings
            self.manuals.see(record)
        fresh = self.diagnosis.news()
        self.news += [News(record.step, self.readings, finding) for finding in fresh]
        if self.diagnosis.suspicious or any(finding.at_least("warning") for finding in fresh):
            self._suspect(record.step)

    def _begin_attempt(self, all_ranks: AllRanksStep) -> None:
        self._attempt += 1
        self._memory = Memory()
        workers = tuple(WorkerFacts(rank, "virtual", 0, "cpu") for rank in range(len(all_ranks.signal_W)))
        self.judge(
            AttemptRecord(
                self._attempt, float(all_ranks.step), len(workers), all_ranks.step, workers, groups=self.groups
            )
        )

    def _suspect(self, step: int) -> None:
        if step - self._suspected_at >= STEPS_BETWEEN_SUSPICIONS:
            self._suspected_at = step
            self._plan.apply(Announcement(start=step + AHEAD, end=step + AHEAD + BURST))


def train(setting: Setting, injections: Sequence[Injection], seed: int, keep: bool = False) -> list[VirtualRun]:
    """One run for each injection; all of them train in lock-step.

    :param keep: The records too, for other rules to judge them again.
    """
    fleet = Fleet(setting, injections, seed)
    runs = [VirtualRun(setting, injection, fleet.groups, records=[] if keep else None) for injection in injections]
    for step in range(setting.steps):
        for run, all_ranks in zip(runs, fleet.step(step, [run.window(step) for run in runs]), strict=True):
            run.see(all_ranks)
    return runs


def judged(setting: Setting, records: Sequence[Record]) -> VirtualRun:
    """A healthy run that was kept, judged by today's rules. Its bursts are those of its own time."""
    run = VirtualRun(setting, Injection(0, setting.steps), ())
    for record in records:
        run.judge(record)
    return run
