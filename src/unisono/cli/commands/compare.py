"""`unisono compare`: what changed between two runs, and whether a fix worked."""

from __future__ import annotations

import argparse
import json
from typing import Any

from unisono.common.errors import UserError
from unisono.common.terminal import colour, width
from unisono.common.whole_file import output_beside, whole_file
from unisono.records.runfile.lines import locate
from unisono.show.analysis.comparison import Comparison, compare
from unisono.show.analysis.run_digest import look_closely
from unisono.show.text.comparison_text import as_text
from unisono.show.text.needs_bokeh import needs_bokeh


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        description="Say what changed between two runs: which findings are gone, still there or new, and how the "
        "numbers and settings differ. Did the fix work?",
        epilog="A finding counts as gone only if the second run was checked for it, for as long as it took to show.",
    )
    parser.add_argument("first", metavar="RUN", help="the run before the change: its directory or its run.jsonl")
    parser.add_argument("second", metavar="RUN", help="the run after it")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("-o", "--out", metavar="FILE", help="also write a page with the curves of both; needs bokeh")


def run(args: argparse.Namespace) -> int:
    if locate(args.first).samefile(locate(args.second)):
        raise UserError(f"Two different runs should be given. Found the same one twice, `{args.second}`. Name another")
    comparison = _compared(args) if args.out is None else _drawn(args)
    if args.json:
        print(json.dumps(comparison.as_dict(), indent=2, allow_nan=False))
    else:
        print(as_text(comparison, width(), colour()))
    return 0


def _compared(args: argparse.Namespace) -> Comparison:
    return compare(look_closely(args.first), look_closely(args.second))


def _drawn(args: argparse.Namespace) -> Comparison:
    """The same, and the page is written on the way."""
    needs_bokeh()
    from unisono.show.page.comparison_page import render_comparison
    from unisono.show.page.timeline import Timeline

    for run in (args.first, args.second):
        output_beside(locate(run), args.out)  # before the work, so that a wrong name is told at once
    first, second = Timeline(), Timeline()
    comparison = compare(look_closely(args.first, first.see), look_closely(args.second, second.see))
    with whole_file(args.out) as temporary:
        temporary.write_text(render_comparison(comparison, first, second), "utf-8")
    return comparison
