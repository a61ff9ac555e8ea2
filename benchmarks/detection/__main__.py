"""`python -m benchmarks.detection`: trains virtual and real workers with and without faults.

Writes what was found, when, and whom it named, as detection.json and as pictures.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path

from benchmarks.detection import results
from benchmarks.detection.pictures import draw

from unisono.cli.main import Parser
from unisono.common.errors import UserError

COMMAND = "python -m benchmarks.detection"


def parser() -> Parser:
    made = Parser(prog=COMMAND, description=__doc__)
    made.add_argument("--out", default="detection", metavar="DIR", help="where results go (default: detection)")
    made.add_argument("--short", action="store_true", help="a few minutes instead of hours")
    made.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="default: all cores")
    made.add_argument("--only", metavar="PART", choices=("faults", "healthy", "real"), help="faults, healthy or real")
    made.add_argument(
        "--minutes", type=float, default=math.inf, metavar="N", help="begin nothing after so many minutes"
    )
    made.add_argument("--resume", action="store_true", help="go on with what DIR/trials holds, by the same rules")
    made.add_argument(
        "--records", metavar="FOLDER", help="keep records of healthy virtual runs; judge those that lie there already"
    )
    made.add_argument("--redraw", action="store_true", help="only draw what detection.json in DIR holds")
    return made


def main(argv: list[str] | None = None) -> int:
    try:
        return measure_and_tell(parser().parse_args(argv))
    except UserError as error:
        print(f"detection: error: {error}", file=sys.stderr)
        return 2


def measure_and_tell(args: argparse.Namespace) -> int:
    if args.processes < 1:
        raise UserError(f"`--processes` should be at least 1. Found `{args.processes}`. Write: --processes 2")
    folder = Path(args.out)
    if not args.redraw:
        measure(args, folder)
    tally = results.load(folder)
    print(results.as_text(tally))
    print(pictures(draw(tally, folder), folder))
    wrong = results.shortcomings(tally)
    print("\n".join(["", *wrong]) if wrong else "")
    return 1 if wrong else 0


def measure(args: argparse.Namespace, folder: Path) -> None:
    from benchmarks.detection.benchmark import LONG, SHORT, benchmark

    options = [*["--short"] * args.short, *(["--only", args.only] if args.only else [])]
    size = SHORT if args.short else LONG
    kept, records = folder / "trials", None if args.records is None else Path(args.records)
    until = time.monotonic() + 60 * args.minutes
    if not args.resume:
        for old in kept.glob("*.json"):
            old.unlink()
    results.save(
        benchmark(" ".join([COMMAND, *options]), size, args.processes, args.only, kept, records, until), folder
    )


def pictures(drawn: list[str], folder: Path) -> str:
    if drawn:
        return "\nDrawn: " + ", ".join(str(folder / name) for name in drawn)
    return "\nNo pictures: they need results of faults and matplotlib: pip install matplotlib"


if __name__ == "__main__":
    sys.exit(main())
