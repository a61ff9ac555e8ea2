"""`unisono report`: one self-contained HTML file about a recorded run."""

from __future__ import annotations

import argparse
import os
from typing import Any

from unisono.report import REPORT
from unisono.report.extras import needs_bokeh
from unisono.runfile._lines import locate
from unisono.terminal import plain


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "report",
        description="Write one HTML file that shows a run: verdict, findings, charts of all workers. It needs no "
        "network.",
        epilog="`unisono live RUN` shows the same page while a job runs.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or its run.jsonl")
    parser.add_argument("-o", "--out", metavar="FILE", help=f"where it goes (default: {REPORT} in the run's directory)")


def run(args: argparse.Namespace) -> int:
    needs_bokeh()
    from unisono.report.page.file import write_report

    target = args.out if args.out is not None else locate(args.run).parent / REPORT
    story = write_report(args.run, target)
    print(plain(story.checkup().verdict_text))
    print(f"report: {plain(os.path.relpath(target))}")
    return 0
