"""`unisono lab`: faults on demand, the benchmark that says which of them are found, and weightings tried on paper."""

from __future__ import annotations

import argparse
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unisono.errors import UserError
from unisono.lab.faults import EXACT, STATISTICAL
from unisono.lab.whatif_question import question as asked
from unisono.terminal import width


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("lab", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", description="The faults by name, and what should be said of each.", help="the faults")
    detect = actions.add_parser(
        "detect",
        description="Trains virtual and real workers with and without faults; writes what was found, when, and whom "
        "it named, as detection.json and as pictures.",
        help="the detection benchmark",
    )
    detect.add_argument("--out", default="detection", metavar="DIR", help="where results go (default: detection)")
    detect.add_argument("--short", action="store_true", help="a few minutes instead of hours")
    detect.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="default: all cores")
    detect.add_argument("--only", metavar="PART", choices=("faults", "healthy", "real"), help="faults, healthy or real")
    detect.add_argument("--redraw", action="store_true", help="only draw what detection.json in DIR holds")
    whatif = actions.add_parser(
        "whatif",
        description="Replays the cosines that a run has recorded: whom a weighting would have kept and left out, and "
        "which steps it would have skipped, for several values of its option. Nothing is trained.",
        help="what a weighting would have done in a recorded run",
    )
    whatif.add_argument("run", metavar="RUN", help="the run's directory or its run.jsonl")
    whatif.add_argument(
        "--weighting",
        default="agreement",
        metavar="NAME[:OPTION=VALUE,...]",
        help="agreement or adaptive, as in agreement:order=sequential (default: agreement)",
    )
    whatif.add_argument("--grid", metavar="VALUE[,VALUE...]", help="values of max_distance, or of share for adaptive")
    whatif.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        for title, faults in (("found by exact evidence", EXACT), ("found by statistics", STATISTICAL)):
            print(f"{title}:")
            print("\n".join(f"  {name:<27}{fault.code:<7}{fault.what}" for name, fault in faults.items()))
        return 0
    return _detect(args) if args.action == "detect" else _whatif(args)


def _detect(args: argparse.Namespace) -> int:
    if args.processes < 1:
        raise UserError(f"`--processes` should be at least 1. Found `{args.processes}`. Write: --processes 2")
    from unisono.lab import results
    from unisono.lab.pictures import draw

    folder = Path(args.out)
    if not args.redraw:
        from unisono.lab.demo import check_torch

        check_torch()
        from unisono.lab.benchmark import LONG, SHORT, benchmark

        command = (
            "unisono lab detect" + (" --short" if args.short else "") + (f" --only {args.only}" if args.only else "")
        )
        results.save(benchmark(command, SHORT if args.short else LONG, args.processes, args.only), folder)
    tally = results.load(folder)
    print(results.as_text(tally))
    print(_pictures(draw(tally, folder), folder))
    wrong = results.shortcomings(tally)
    print("\n".join(["", *wrong]) if wrong else "")
    return 1 if wrong else 0


def _pictures(drawn: list[str], folder: Path) -> str:
    if drawn:
        return "\nDrawn: " + ", ".join(str(folder / name) for name in drawn)
    return '\nNo pictures: they need results of faults and matplotlib: pip install "unisono[plots]"'


def _whatif(args: argparse.Namespace) -> int:
    question = asked(args.weighting, args.grid)
    if find_spec("torch") is None:
        raise UserError('Weightings need torch. Found none. Install it with: pip install "unisono[torch]"')
    from unisono.lab.whatif_answer import look_back
    from unisono.lab.whatif_text import as_text

    answer = look_back(args.run, question)
    print(json.dumps(answer.as_dict(), indent=2, allow_nan=False) if args.json else as_text(answer, width()))
    return 0
