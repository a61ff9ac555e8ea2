"""`unisono live`: a run's page, which follows the run while it is written, for browsers on this machine."""

from __future__ import annotations

import argparse
import contextlib
import errno
import getpass
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from unisono.common.errors import UserError
from unisono.common.terminal import plain
from unisono.show.live_server import Followers, PageServer, RunIndex, Site
from unisono.show.text.needs_bokeh import needs_bokeh

PORT = 8642
PORTS_TRIED = 20
NICENESS = 10
"""A job on the same machine comes first."""

MOST_COMPLAINTS = 20
LOOKED_UP_EVERY = 0.2
"""Seconds until a signal is obeyed."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "live",
        description="Show a run's page in the browser, and follow the run while it is written.",
        epilog="Only this machine can reach the page. Ctrl-C ends it; the job is never touched.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or its run.jsonl, or a folder of runs")
    parser.add_argument("--port", metavar="P", help=f"0 takes any free one (default: {PORT}, or the next free one)")


def run(args: argparse.Namespace) -> int:
    ports, run_index = _ports(args.port), RunIndex(args.run)
    with _server(run_index, ports) as server, _ended_by_signals(server):
        port = server.server_port
        print(f"unisono: the page is at http://127.0.0.1:{port}/ until Ctrl-C")
        print(f"unisono: from elsewhere first: ssh -L {port}:127.0.0.1:{port} {_login()}", flush=True)
        with contextlib.suppress(OSError, AttributeError):
            os.nice(NICENESS)
        server.serve_forever(LOOKED_UP_EVERY)
    return 0


def _ports(asked: str | None) -> list[int]:
    if asked is None:
        return [*range(PORT, PORT + PORTS_TRIED), 0]
    if not re.fullmatch(r"[0-9]{1,5}", asked) or int(asked) > 65_535:
        raise UserError(f"`--port` should be a whole number from 0 to 65535. Found `{asked}`. Write: --port {PORT}")
    return [int(asked)]


def _server(run_index: RunIndex, ports: list[int]) -> PageServer:
    """On the first port that is free."""
    complain = _complainer()
    site = _site(run_index, complain)
    trouble = ""
    for port in ports:
        try:
            return PageServer(port, site, complain)
        except OSError as error:
            trouble = f"{port} ({error.strerror or error})"
            if error.errno != errno.EADDRINUSE:
                break
    raise UserError(f"`--port` should be free. Found {trouble}. Name another one, or 0 for any")


def _site(run_index: RunIndex, complain: Callable[[str], None]) -> Site:
    needs_bokeh()
    from unisono.show.page.live_view import LiveView, shell, static_files

    return Site(run_index, Followers(LiveView, complain), shell, static_files())


def _login() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "USER"
    return plain(f"{user}@{socket.gethostname()}")


def _complainer() -> Callable[[str], None]:
    """Writes to stderr, each text once."""
    told: set[str] = set()

    def complain(text: str) -> None:
        if text not in told and len(told) < MOST_COMPLAINTS:
            told.add(text)
            with contextlib.suppress(OSError, ValueError):
                print(f"unisono: {plain(text)}", file=sys.stderr, flush=True)

    return complain


@contextlib.contextmanager
def _ended_by_signals(server: PageServer) -> Iterator[None]:
    """By Ctrl-C and SIGTERM. Nothing is raised: what is raised in the wrong moment, Python may pass over."""

    def end(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
