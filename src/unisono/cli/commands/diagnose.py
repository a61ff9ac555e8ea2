"""`unisono diagnose`: what is wrong in a recorded run, on which rank, why, and what to do."""

from __future__ import annotations

import argparse
import json
from typing import Any

from unisono.common.terminal import colour, width
from unisono.records.finding import SEVERITIES
from unisono.show.analysis.checkup import examine
from unisono.show.text.catalogue import rule_named
from unisono.show.text.findings import as_text
from unisono.show.text.findings_markdown import as_markdown


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "diagnose",
        description="Look through a recorded run, finished or still going on, and say what is wrong with it.",
        epilog="`unisono explain CODE` says more about a finding.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or its run.jsonl")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument("--markdown", action="store_true", help="for pasting into an issue")
    parser.add_argument(
        "--fail-on", choices=SEVERITIES, help="exit code 1 if a finding, also a resolved one, is as grave as this"
    )
    parser.add_argument(
        "--ignore", metavar="CODE", action="append", default=[], help="leave this finding out; may be given repeatedly"
    )


def run(args: argparse.Namespace) -> int:
    codes = tuple(rule_named(name).code for names in args.ignore for name in names.split(","))
    checkup = examine(args.run, codes)
    if args.json:
        print(json.dumps(checkup.as_dict(), indent=2, allow_nan=False))
    else:
        print(as_markdown(checkup) if args.markdown else as_text(checkup, width(), colour()))
    return int(args.fail_on is not None and checkup.reaches(args.fail_on))
