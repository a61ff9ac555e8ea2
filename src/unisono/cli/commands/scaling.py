"""`unisono scaling`: how noisy the gradients are, and what more workers would bring."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from os import PathLike
from typing import Any

from unisono.common.terminal import lines_of, width
from unisono.diagnose.engine import Diagnosis
from unisono.records import Record, StepRecord
from unisono.records.finding import Finding
from unisono.show.analysis.checkup import strict
from unisono.show.analysis.lost_work import Loss, Timesheet, lost_work
from unisono.show.analysis.scaling import TIMES, NoiseReadings, Outlook, outlook
from unisono.show.analysis.scan_run import look_through
from unisono.show.text.scaling_text import as_text, caution, lost_as_text


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "scaling",
        description="Say how noisy the gradients are, how large a batch still pays, what more workers would bring, and "
        "what a fault has cost.",
        epilog="The estimate is explained in docs/measures.md.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or its run.jsonl")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    readings, times, findings = _look_through(args.run)
    missing, losses = readings.missing(), lost_work(findings, times)
    found = None if missing else outlook(readings)
    if args.json:
        print(json.dumps(strict(_as_dict(found, missing, losses)), indent=2, allow_nan=False))
    else:
        print(_as_text(found, missing, losses, findings))
    return 0


def _look_through(path: str | PathLike[str]) -> tuple[NoiseReadings, Timesheet, list[Finding]]:
    readings, times, diagnosis = NoiseReadings(), Timesheet(), Diagnosis()

    def see(record: Record) -> None:
        diagnosis.see(record)
        if isinstance(record, StepRecord):
            readings.see(record)
            times.see(record)

    look_through(path, see)
    return readings, times, diagnosis.findings()


def _as_text(found: Outlook | None, missing: str, losses: Sequence[Loss], findings: Sequence[Finding]) -> str:
    columns = width()
    parts = ["\n".join(lines_of(f"No estimate: {missing}.", columns)) if found is None else as_text(found, columns)]
    if found is not None:
        parts += ["\n".join(lines_of(caution, columns)) for caution in caution(found, findings)]
    if losses:
        parts.append("Time of all workers in steps with a finding:\n" + lost_as_text(losses, columns))
    return "\n\n".join(parts)


def _as_dict(found: Outlook | None, missing: str, losses: Sequence[Loss]) -> dict[str, Any]:
    content: dict[str, Any] = {"missing": missing or None} | ({} if found is None else _numbers(found))
    return content | {"lost": [asdict(loss) for loss in losses]}


def _numbers(found: Outlook) -> dict[str, Any]:
    now, critical = found.workers, found.critical_batch
    return {
        "workers": now,
        "readings": found.readings,
        "first_step": found.first_step,
        "last_step": found.last_step,
        "samples_per_worker": found.samples,
        "common_share": asdict(found.share),
        "noise_scale": asdict(found.noise_scale),
        "critical_batch": None if critical is None else asdict(critical),
        "effective_workers": asdict(found.effective_workers(now)),
        "readings_wanted": found.readings_wanted,
        "outlook": [
            {
                "workers": times * now,
                "steps": asdict(found.steps(times * now)),
                "worker_time": asdict(found.worker_time(times * now)),
                "efficiency": asdict(found.efficiency(times * now)),
            }
            for times in TIMES
        ],
    }
