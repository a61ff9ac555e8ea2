"""`unisono batches`: the batches that stood out, for data curation."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from typing import Any

from unisono.common.errors import UserError
from unisono.common.terminal import table as aligned
from unisono.records.runfile import read_run, scan
from unisono.show.analysis.checkup import strict
from unisono.show.analysis.unusual_batches import FAR_OFF, WINDOW, UnusualBatch, unusual_batches

INDICES_SHOWN = 6
LEGEND = f"""
off: standard deviations from the other workers' batches of the step and from the rank's own
     last {WINDOW} steps, the smaller of the two; batches under {FAR_OFF:.0f} are not shown
indices: of the dataset, where they are known"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "batches",
        description="List the batches whose loss or gradient was far off, or not finite, for a look at the data.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or its run.jsonl")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="how many at most (default: 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object, with all indices")


def run(args: argparse.Namespace) -> int:
    if args.top < 1:
        raise UserError(f"`--top` should be from 1 up. Found `{args.top}`. Write: --top 20")
    found = unusual_batches((record for _, record in scan(args.run) if record is not None), args.top)
    if not found:
        read_run(args.run)  # says so when this is no run at all
    if args.json:
        print(json.dumps({"batches": [strict(asdict(one)) for one in found]}, indent=2, allow_nan=False))
    else:
        print(table(found) if found else "no batch stood out")
    return 0


def table(found: list[UnusualBatch]) -> str:
    rows = [("step", "rank", "what", "loss", "peers", "off", "samples", "indices"), *map(_row, found)]
    widths = [8, 5, 10, 10, 10, 8, 7, max(len(str(row[-1])) for row in rows)]
    return "\n".join([*aligned(rows, ">><>>>><", widths), LEGEND])


def _row(one: UnusualBatch) -> tuple[object, ...]:
    off = f"{one.off:+.1f}" if one.off and math.isfinite(one.off) else "-"
    samples = "-" if one.samples is None else one.samples
    numbers = (one.step, one.rank, one.what, _number(one.loss), _number(one.peers), off, samples)
    return *numbers, _few(one)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _few(one: UnusualBatch) -> str:
    """The first dataset indices."""
    known = ["?" if index is None else str(index) for index in one.indices[:INDICES_SHOWN]]
    more = len(one.indices) - INDICES_SHOWN
    return " ".join([*known, f"and {more} more"] if more > 0 else known) or "-"
