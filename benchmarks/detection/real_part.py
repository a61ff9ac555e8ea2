"""The benchmark's real processes: jobs with faults and healthy ones, read back from their run files. Without torch."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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

Job = Callable[[], list[Outcome]]


def real_part(seeds: int, steps: int, processes: int) -> list[Outcome]:
    """
    :param seeds: Runs of every fault.
    :param steps: Healthy steps in all.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, processes // WORKERS)) as pool:
        jobs = [*_healthy_jobs(steps, Path(folder)), *_fault_jobs(seeds, Path(folder))]
        return [outcome for outcomes in pool.map(lambda job: job(), jobs) for outcome in outcomes]


def _fault_jobs(seeds: int, folder: Path) -> Iterator[Job]:
    for name in FAULTS:
        if seeds and name not in UNSEEN:
            yield lambda name=name: [  # type: ignore[misc]
                _faulty(name, run) for run in run_real(name, WORKERS, range(seeds), folder / name)
            ]


def _healthy_jobs(steps: int, folder: Path) -> Iterator[Job]:
    """Runs of all sizes and models, two at a time in one job."""
    for number, first in enumerate(range(0, steps, 2 * RUN_STEPS)):
        workers, here = HEALTHY_WORKERS[number % len(HEALTHY_WORKERS)], min(2 * RUN_STEPS, steps - first)
        yield lambda workers=workers, here=here, number=number: [  # type: ignore[misc]
            _healthy(workers, run) for run in healthy_steps(workers, here, folder / f"healthy-{number}", 2 * number)
        ]


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
        news += [told(finding, step, readings - before) for finding in fresh]
    final = {finding.code: finding.ranks for finding in diagnosis.findings() if finding.at_least("warning")}
    return news, final, manuals, steps
