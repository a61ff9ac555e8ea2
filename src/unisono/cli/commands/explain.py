"""`unisono explain`: what a code means, what causes it, and what to do."""

from __future__ import annotations

import argparse
from typing import Any

from unisono.show.text.catalogue import explanation, overview, rule_named


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "explain",
        description="Say what a finding means, what causes it, what to do, and where that is known from.",
    )
    parser.add_argument("code", metavar="CODE", nargs="?", help="like UN101 or duplicated-data; without it, all codes")
    parser.add_argument("--all", action="store_true", help="the table of all codes")


def run(args: argparse.Namespace) -> int:
    print(overview() if args.all or args.code is None else explanation(rule_named(args.code)))
    return 0
