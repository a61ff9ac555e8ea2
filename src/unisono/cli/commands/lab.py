"""`unisono lab`: faults on demand, weightings tried on paper, and the papers' experiments."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unisono.common.errors import UserError
from unisono.common.terminal import width
from unisono.lab.experiments.catalogue import EXPERIMENTS, Order
from unisono.lab.faults.catalogue import EXACT, STATISTICAL
from unisono.lab.whatif.question import question as asked


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("lab", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", description="The faults by name, and what should be said of each.", help="the faults")
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
    _add_paper(actions)


def _add_paper(actions: Any) -> None:
    experiments = "\n".join(f"  {name:<22}{experiment.what}" for name, experiment in EXPERIMENTS.items())
    paper = actions.add_parser(
        "paper",
        description="Runs the experiments behind unisono again. Each run is added to the results as it ends; started "
        "again, it goes on with what is missing.",
        epilog=f"experiments:\n{experiments}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="the papers' experiments, resumable",
    )
    paper.add_argument("experiment", choices=EXPERIMENTS, metavar="EXPERIMENT")
    paper.add_argument("--data", type=Path, metavar="DIR", help="the data; none comes with unisono")
    paper.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the results, JSON, new or to go on with"
    )
    paper.add_argument("--minutes", type=float, default=10, metavar="N", help="stop after this long (default: 10)")
    paper.add_argument("--small", action="store_true", help="a minute with generated data, only to see that it works")


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        for title, faults in (("found by exact evidence", EXACT), ("found by statistics", STATISTICAL)):
            print(f"{title}:")
            print("\n".join(f"  {name:<27}{fault.code:<7}{fault.what}" for name, fault in faults.items()))
        return 0
    return _paper(args) if args.action == "paper" else _whatif(args)


def _paper(args: argparse.Namespace) -> int:
    experiment = EXPERIMENTS[args.experiment]
    if not (math.isfinite(args.minutes) and args.minutes > 0):
        raise UserError(f"`--minutes` should be a number above 0. Found `{args.minutes}`. Write: --minutes 10")
    if not args.small and not (args.data and args.data.is_dir()):
        found = f"no folder `{args.data}`" if args.data else "none"
        raise UserError(f"`--data` should be a folder with {experiment.data}. Found {found}. Try without data: --small")
    if find_spec("torch") is None:
        raise UserError('Experiments need torch. Found none. Install it with: pip install "unisono[torch]"')
    command = f"unisono {shlex.join(sys.argv[1:])}"
    print(experiment.run(Order(None if args.small else args.data, args.out, args.minutes, command)))
    return 0


def _whatif(args: argparse.Namespace) -> int:
    question = asked(args.weighting, args.grid)
    if find_spec("torch") is None:
        raise UserError('Weightings need torch. Found none. Install it with: pip install "unisono[torch]"')
    from unisono.lab.whatif.answer import look_back
    from unisono.lab.whatif.text import as_text

    answer = look_back(args.run, question)
    print(json.dumps(answer.as_dict(), indent=2, allow_nan=False) if args.json else as_text(answer, width()))
    return 0
