"""`unisono demo`: real processes on this machine, a silent fault, and the finding that names it."""

from __future__ import annotations

import argparse
from typing import Any

from unisono.common import terminal
from unisono.common.errors import UserError
from unisono.lab.faults.catalogue import FAULTS

USUAL, USUAL_GUARDED = "duplicated-data", "nan-on-one-rank"
UNSEEN = ("oscillation",)
"""The demo's small job does not swing: it learns, or it breaks."""

SHOWN = {name: fault for name, fault in FAULTS.items() if not fault.harmless and name not in UNSEEN}
"""Of a harmless fault nothing would be said."""

ANNOUNCED = {
    False: "In the second a mistake was made that raises no error.",
    True: "In both the same mistake was made, and the second has the guard.",
}


def add_parser(subparsers: Any) -> None:
    faults = "\n".join(f"  {name:<27}{fault.what}" for name, fault in SHOWN.items())
    parser = subparsers.add_parser(
        "demo",
        description=__doc__,
        epilog=f"faults:\n{faults}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--fault",
        choices=SHOWN,
        metavar="SLUG",
        help=f"what goes wrong (default: {USUAL}; with --guard: {USUAL_GUARDED})",
    )
    parser.add_argument(
        "--guard", action="store_true", help="train twice with the fault instead: without the guard, and with it"
    )
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="processes to train with (default: 4)")
    parser.add_argument("--out", metavar="DIR", help="where the two runs go (default: unisono-runs/<time>-demo)")


def run(args: argparse.Namespace) -> int:
    from unisono.lab.demo.demo import check_torch, show, show_guarded
    from unisono.lab.faults.lengths import length_in_demo

    if not 2 <= args.workers <= 64:
        raise UserError(f"`--workers` should be from 2 to 64. Found `{args.workers}`. Write: --workers 4")
    check_torch()
    fault = args.fault or (USUAL_GUARDED if args.guard else USUAL)
    print(f"Two trainings of {length_in_demo(fault).steps:,} steps on this machine. {ANNOUNCED[args.guard]}\n")
    told = (show_guarded if args.guard else show)(fault, args.workers, args.out, terminal.width(), terminal.colour())
    print(told)
    print(f"\nThe mistake was: {SHOWN[fault].what}.")
    return 0
