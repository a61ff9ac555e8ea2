"""`unisono bench`: what listening costs on this machine."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from unisono.common import terminal
from unisono.common.errors import UserError
from unisono.common.whole_file import output_path, whole_file

if TYPE_CHECKING:
    from unisono.lab.bench.request import BenchRequest

UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
FEWEST, MOST = 10**6, 10**11
MOST_WORKERS = 64


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        description="Measures on this machine what one read of the gradients costs, what listening adds to a step of "
        "training, and what steering adds, each as a ratio to its like in the same run. Takes some eight minutes on "
        "two cores, and longer where others use them.",
        epilog="docs/performance.md explains the figures and shows some.",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument(
        "--parameters", metavar="N", help="of the model, from 1M, as in 10M or 1.2B (default: 10M; on a GPU 100M)"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="timed steps of each kind (default: 25; on a GPU 100)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes to train with (default: 2; on a GPU 1)")
    parser.add_argument("--json", metavar="FILE", help="where everything that was measured goes")
    parser.add_argument(
        "--short", action="store_true", help="half a minute: shows that it works, too short for a figure"
    )


def run(args: argparse.Namespace) -> int:
    if args.json is not None:
        _try_to_write(args.json)
    request = _request(args)
    if find_spec("torch") is None:
        raise UserError(
            'The bench trains, so it needs torch. Found none. Install it with: pip install "unisono[torch]"'
        )
    from unisono.lab.bench.measuring import check, measure
    from unisono.lab.bench.text import as_text

    check(request)
    # As Ctrl-C does, so that processes end and folders go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = measure(request, lambda text: print(f"measuring {text}", file=sys.stderr))
    print(as_text(found, terminal.width(), args.short))
    if args.json is not None:
        _keep(found, args)
    return 0


def _request(args: argparse.Namespace) -> BenchRequest:
    from unisono.lab.bench.request import short, usual

    parameters = None if args.parameters is None else number_of_parameters(args.parameters)
    for name, value, most, usually in (("steps", args.steps, 10**6, 25), ("workers", args.workers, MOST_WORKERS, 2)):
        if value is not None and not 1 <= value <= most:
            raise UserError(f"`--{name}` should be from 1 to {most:,}. Found `{value}`. Write: --{name} {usually}")
    request = usual(args.device, parameters, args.workers)
    if args.short:
        request = short(request, parameters)
    return request if args.steps is None else replace(request, steps=-(-args.steps // request.turns))


def number_of_parameters(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([kmb]?)", text.replace("_", "").lower())
    number = round(float(found[1]) * UNITS[found[2]]) if found else 0
    if not FEWEST <= number <= MOST:
        raise UserError(f"`--parameters` should be a number from 1M to 100B. Found `{text}`. Write: --parameters 10M")
    return number


def _try_to_write(file: str) -> None:
    """Now, not after minutes of measuring."""
    with whole_file(output_path(file)) as temporary:
        temporary.write_text("{}\n")


def _keep(found: dict[str, Any], args: argparse.Namespace) -> None:
    chosen = {name: getattr(args, name) for name in ("device", "parameters", "steps", "workers")}
    options = [f"--{name} {value}" for name, value in chosen.items() if value is not None]
    command = " ".join(["unisono bench", *options, *(["--short"] if args.short else [])])
    with whole_file(args.json) as temporary:
        temporary.write_text(json.dumps({"command": command, **found}, indent=1) + "\n")
