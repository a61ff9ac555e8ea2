"""The benchmark's real processes: jobs with faults and healthy ones, read back from their run files. Without torch."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.detection.kept import load_outcomes, save_outcomes
from benchmarks.detection.manuals import Manuals
from benchmarks.detection.outcome import Outcome, Told, told
from benchmarks.detection.real_runs import healthy_steps, run_real

from unisono.diagnose.engine import Diagnosis
from unisono.lab.faults.catalogue import FAULTS
from unisono.records import StepRecord
from unisono.records.runfile import scan

WORKERS = 4
UNSEEN = ("bit-10", "oscillation")
"""Nothing to find in a job this small."""

HEALTHY_WORKERS = (2, 4, 2, 4, 2)
RUN_STEPS = 5000


@dataclass(frozen=True)
class Job:
    name: str
    perform: Callable[[Path], list[Outcome]]
    """Given a folder for its runs."""


def real_part(seeds: int, steps: int, processes: int, kept: Path, until: float = math.inf) -> list[Outcome]:
    """
    :param seeds: Runs of every fault.
    :param steps: Healthy steps in all.
    :param kept: Folder of outcomes: what lies there is done.
    :param until: No job is begun after this time, as `time.monotonic()` has it.
    """
    jobs = [*_healthy_jobs(steps), *_fault_jobs(seeds)]
    with ThreadPoolExecutor(max(1, processes // WORKERS)) as pool:
        return [
            outcome for outcomes in pool.map(lambda job: _performed(job, kept, until), jobs) for outcome in outcomes
        ]


def _performed(job: Job, kept: Path, until: float) -> list[Outcome]:
    path = kept / f"real-{job.name}.json"
    if not path.exists():
        if time.monotonic() >= until:
            return []
        with tempfile.TemporaryDirectory() as folder:
            save_outcomes(job.perform(Path(folder)), path)
    return load_outcomes(path)


def _fault_jobs(seeds: int) -> Iterator[Job]:
    for name in FAULTS:
        if seeds and name not in UNSEEN:
            yield Job(name, partial(_faulty_runs, name, seeds))


def _faulty_runs(name: str, seeds: int, folder: Path) -> list[Outcome]:
    return [_faulty(name, run) for run in run_real(name, WORKERS, range(seeds), folder)]


def _healthy_jobs(steps: int) -> Iterator[Job]:
    """Runs of all sizes and models, two at a time in one job."""
    for number, first in enumerate(range(0, steps, 2 * RUN_STEPS)):
        workers, here = HEALTHY_WORKERS[number % len(HEALTHY_WORKERS)], min(2 * RUN_STEPS, steps - first)
        yield Job(f"healthy-{number}", partial(_healthy_runs, workers, here, 2 * number))


def _healthy_runs(workers: int, steps: int, first: int, folder: Path) -> list[Outcome]:
    return [_healthy(workers, run) for run in healthy_steps(workers, steps, folder, first)]


def _faulty(name: str, run: Path) -> Outcome:
    facts = [json.loads(run.with_name(f"{run.name}.{rank}.json").read_text()) for rank in range(WORKERS)]
    begin = facts[0]["starts_at"] if FAULTS[name].late else 0
    news, final, _, _ = _listen(run, begin)
    return Outcome(
        fault=name,
        setting="lab job",
        workers=WORKERS,
        schedule="every step",
        fired=sum(fact["fired"] for fact in facts),
        victim=facts[0]["victim"],
        told=tuple(one for one in news if one.step >= begin),
        early=tuple(one for one in news if one.step < begin),
        healthy_steps=begin,
        final_ranks=final,
        real=True,
    )


def _healthy(workers: int, run: Path) -> Outcome:
    news, final, manuals, steps = _listen(run, 0)
    return Outcome(
        fault="",
        setting=run.name.partition("-")[0],
        workers=workers,
        schedule="default",
        fired=0,
        victim=0,
        told=tuple(news),
        healthy_steps=steps,
        final_ranks=final,
        manuals=dict(manuals.alarms),
        real=True,
    )


def _listen(run: Path, begin: int) -> tuple[list[Told], dict[str, tuple[int, ...]], Manuals, int]:
    """Replays the run: what was told and when, what was left at the end, the manuals' alarms, the steps."""
    diagnosis, manuals, news = Diagnosis(), Manuals(), list[Told]()
    readings = before = steps = 0
    for _, record in scan(run / "run.jsonl"):
        if record is None:
            continue
        diagnosis.see(record)
        if isinstance(record, StepRecord):
            manuals.see(record)
            readings, steps = readings + record.heard, steps + 1
            before = readings if record.step < begin else before
        step = diagnosis.run_state.step
        fresh = [finding for finding in diagnosis.news() if finding.at_least("warning")]
        news += [told(finding, step, readings - before, begin) for finding in fresh]
    final = {finding.code: finding.ranks for finding in diagnosis.findings() if finding.at_least("warning")}
    return news, final, manuals, steps
