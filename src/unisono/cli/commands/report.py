"""`unisono report`: one self-contained HTML file about a recorded run."""

from __future__ import annotations

import argparse
import os
from typing import Any

from unisono.common.terminal import plain
from unisono.records.runfile.lines import locate
from unisono.show import REPORT
from unisono.show.text.needs_bokeh import needs_bokeh


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
    from unisono.show.page.page_file import write_report

    target = args.out if args.out is not None else locate(args.run).parent / REPORT
    page_model = write_report(args.run, target)
    print(plain(page_model.checkup().verdict_text))
    print(f"report: {plain(os.path.relpath(target))}")
    return 0
