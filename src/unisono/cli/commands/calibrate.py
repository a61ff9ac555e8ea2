"""`unisono calibrate`: limits for the guard from a recorded run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unisono.act.calibration import Calibration, Calibrator, as_text, as_toml, calibration
from unisono.common.terminal import width
from unisono.common.whole_file import output_beside, whole_file
from unisono.records import Record, StepRecord
from unisono.records.runfile.lines import locate
from unisono.show.analysis.checkup import strict
from unisono.show.analysis.scan_run import look_through


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "calibrate",
        description="Suggest limits for the guard that the run's own healthy steps stay far below, each with its "
        "evidence: a norm to clip at, what counts as a spike, and how often to listen.",
        epilog="Use them with unisono run --guard-file FILE, or unisono.guard(FILE).",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or its run.jsonl")
    parser.add_argument("--write", metavar="FILE", help="write them as a guard file (TOML), evidence as comments")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.write is not None:
        output_beside(locate(args.run), args.write)  # before the work, so that a wrong name is told at once
    found = _found(args.run)
    if args.write is not None:
        with whole_file(args.write) as file:
            file.write_text(as_toml(found, Path(args.run).resolve().name), encoding="utf-8")
    if args.json:
        print(json.dumps(strict(asdict(found)), indent=2, allow_nan=False))
        return 0
    print(as_text(found, width()))
    if args.write is not None:
        print(f"\nwritten: {args.write}")
    return 0


def _found(run: str) -> Calibration:
    calibrator = Calibrator()

    def see(record: Record) -> None:
        if isinstance(record, StepRecord):
            calibrator.see(record)

    look_through(run, see)
    return calibration(calibrator)
