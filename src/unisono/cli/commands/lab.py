"""`unisono lab`: faults on demand, and weightings tried on paper."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from typing import Any

from unisono.common.errors import UserError
from unisono.common.terminal import width
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


def run(args: argparse.Namespace) -> int:
    if args.action == "list":
        for title, faults in (("found by exact evidence", EXACT), ("found by statistics", STATISTICAL)):
            print(f"{title}:")
            print("\n".join(f"  {name:<27}{fault.code:<7}{fault.what}" for name, fault in faults.items()))
        return 0
    return _whatif(args)


def _whatif(args: argparse.Namespace) -> int:
    question = asked(args.weighting, args.grid)
    if find_spec("torch") is None:
        raise UserError('Weightings need torch. Found none. Install it with: pip install "unisono[torch]"')
    from unisono.lab.whatif.answer import look_back
    from unisono.lab.whatif.text import as_text

    answer = look_back(args.run, question)
    print(json.dumps(answer.as_dict(), indent=2, allow_nan=False) if args.json else as_text(answer, width()))
    return 0
