"""`unisono demo`: real processes on this machine, a silent fault, and what unisono heard."""

from __future__ import annotations

import argparse
from typing import Any

from unisono.errors import UserError


def add_parser(subparsers: Any) -> None:
    from unisono.lab.demo import FAULTS

    parser = subparsers.add_parser("demo", description=__doc__)
    parser.add_argument("--fault", default=FAULTS[0], choices=FAULTS, help="what goes wrong in the second training")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="processes to train with (default: 4)")
    parser.add_argument("--out", metavar="DIR", help="where the two runs go (default: unisono-runs/<time>-demo)")


def run(args: argparse.Namespace) -> int:
    from unisono.lab.demo import check_torch, show

    if not 2 <= args.workers <= 64:
        raise UserError(f"`--workers` should be from 2 to 64. Found `{args.workers}`. Write: --workers 4")
    check_torch()
    print("Two trainings on this machine, the same script but for its sampler.")
    print(show(args.fault, args.workers, args.out))
    print(EXPLANATION)
    return 0


EXPLANATION = """
The averaged loss of both trainings falls, and no error is raised. But in the second one every worker has read the
same shard: the workers' losses do not differ at all, their gradients point in exactly the same direction, and the
workers together are worth one. A loss curve cannot show it; unisono listens to the workers before they are averaged."""
