"""`unisono diagnose`: what is wrong in a recorded run, on which rank, why, and what to do."""

from __future__ import annotations

import argparse
import json
from typing import Any

from unisono.common.errors import UserError
from unisono.common.terminal import colour, table, width
from unisono.diagnose.manuals import NAME, ManualThresholds
from unisono.records.finding import SEVERITIES
from unisono.show.analysis.checkup import Checkup, examine
from unisono.show.text.catalogue import rule_named
from unisono.show.text.findings import as_text
from unisono.show.text.findings_markdown import as_markdown, escaped


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
    parser.add_argument("--checks", action="store_true", help="also list every check and what came of it")
    parser.add_argument(
        "--fail-on",
        choices=SEVERITIES,
        help="exit code 1 if an open finding is as grave as this, else 3 if the run is unheard or broken",
    )
    parser.add_argument("--fail-on-resolved", action="store_true", help="--fail-on counts resolved findings as well")
    parser.add_argument(
        "--thresholds", choices=(NAME,), help="also say what the manuals' own thresholds would have said"
    )
    parser.add_argument(
        "--ignore", metavar="CODE", action="append", default=[], help="leave this finding out; may be given repeatedly"
    )


def run(args: argparse.Namespace) -> int:
    if args.fail_on_resolved and args.fail_on is None:
        raise UserError("`--fail-on-resolved` should come with `--fail-on`. Found it alone. Write: --fail-on warning")
    codes = tuple(rule_named(name).code for names in args.ignore for name in names.split(","))
    checkup = examine(args.run, codes, manuals=ManualThresholds() if args.thresholds else None)
    if args.json:
        print(json.dumps(checkup.as_dict(), indent=2, allow_nan=False))
    else:
        print(as_markdown(checkup) if args.markdown else as_text(checkup, width(), colour()))
        if args.checks:
            print("\n" + _checks(checkup, args.markdown))
    return 0 if args.fail_on is None else checkup.exit_code(args.fail_on, args.fail_on_resolved)


def _checks(checkup: Checkup, markdown: bool) -> str:
    """Every check, what it looks for, and what came of it."""
    rows = [(code, rule_named(code).title(), result) for code, result in checkup.results()]
    if markdown:
        told = (" | ".join(map(escaped, row)) for row in rows)
        return "\n".join(["| check | looks for | result |", "|---|---|---|", *(f"| {row} |" for row in told)])
    return "\n".join(table([("check", "looks for", "result"), *rows], "<<<"))
