"""One virtual job as unisono hears it: roll calls in, findings out, through the product's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.detection.manuals import Manuals
from benchmarks.detection.setting import Setting
from benchmarks.detection.virtual_workers import Fleet

from unisono.common.schedule import BURST
from unisono.diagnose.engine import Diagnosis
from unisono.lab.faults.injections import Injection
from unisono.listen.listening_plan import AHEAD
from unisono.listen.messages import AllRanksStep
from unisono.measure.adapt_schedule import STEPS_BETWEEN_SUSPICIONS
from unisono.measure.step_record import Memory, measure
from unisono.records import AttemptRecord, WorkerFacts
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

    _memory: Memory = field(default_factory=Memory)
    _attempt: int = 0
    _burst: tuple[int, int] = (0, 0)
    _suspected_at: int = -STEPS_BETWEEN_SUSPICIONS

    def listens(self, step: int) -> bool:
        return self.setting.listens(step) or self._burst[0] <= step < self._burst[1]

    def see(self, all_ranks: AllRanksStep) -> None:
        if all_ranks.step in (0, self.setting.resume_at):
            self._begin_attempt(all_ranks)
        record = measure(all_ranks, self._memory, self._attempt)
        self.diagnosis.see(record)
        self.readings += record.heard
        if all_ranks.step < self.injection.starts_at:
            self.readings_before = self.readings
            self.manuals.see(record)
        fresh = self.diagnosis.news()
        self.news += [News(all_ranks.step, self.readings, finding) for finding in fresh]
        if self.diagnosis.suspicious or any(finding.at_least("warning") for finding in fresh):
            self._suspect(all_ranks.step)

    def _begin_attempt(self, all_ranks: AllRanksStep) -> None:
        self._attempt += 1
        self._memory = Memory()
        workers = tuple(WorkerFacts(rank, "virtual", 0, "cpu") for rank in range(len(all_ranks.signal_W)))
        self.diagnosis.see(
            AttemptRecord(
                self._attempt, float(all_ranks.step), len(workers), all_ranks.step, workers, groups=self.groups
            )
        )

    def _suspect(self, step: int) -> None:
        if step - self._suspected_at >= STEPS_BETWEEN_SUSPICIONS:
            self._suspected_at = step
            self._burst = (step + AHEAD, step + AHEAD + BURST)


def train(setting: Setting, injections: Sequence[Injection], seed: int) -> list[VirtualRun]:
    """One run for each injection; all of them train in lock-step."""
    fleet = Fleet(setting, injections, seed)
    runs = [VirtualRun(setting, injection, fleet.groups) for injection in injections]
    for step in range(setting.steps):
        for run, all_ranks in zip(runs, fleet.step(step, [run.listens(step) for run in runs]), strict=True):
            run.see(all_ranks)
    return runs
