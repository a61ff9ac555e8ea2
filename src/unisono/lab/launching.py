"""Starts the lab's scripts and functions as real processes on this machine. Without torch."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from unisono.common.errors import UserError

LOWEST_PORT, FIRST_OUTGOING_PORT = 10_000, 32_768
"""The second is Linux's default, `net.ipv4.ip_local_port_range`."""


def torchrun(workers: int, script: Path, *arguments: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    return [*launcher, str(script), *arguments]


def follow(command: Sequence[str], title: str) -> None:
    """Runs it to its end; each line that it prints says how far it is."""
    # A file, not a pipe: nobody reads the complaints of a job before it has ended.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        returncode = _run(command, title, complaints.fileno())
        complaints.seek(0)
        if returncode:
            raise UserError(f"The training ended with exit code {returncode}: {_last_line(complaints.read())}")


def _run(command: Sequence[str], title: str, complaints: int) -> int:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=environment, encoding="utf-8"
    ) as process:
        for line in process.stdout or ():
            progress(f"{title} {line.strip()}")
    progress("")
    return process.returncode


def progress(text: str) -> None:
    """One line that is drawn anew on a terminal, and a line per sign of life elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
    elif text:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def fork_ranks(workers: int, be_rank: Callable[[int], None], complaints: Path) -> None:
    """Runs a function as the ranks of a job, forked from this process: what it has imported and loaded is there.

    This process must not have started threads that compute.

    :param complaints: Takes what the ranks print.
    """
    port = free_port()
    ranks = {_forked(rank, workers, port, be_rank, complaints): rank for rank in range(workers)}
    left = dict(ranks)
    try:
        while left:
            process, status = os.wait()
            if left.pop(process, None) is not None and status:
                said = complaints.read_text(encoding="utf-8", errors="replace")
                raise UserError(f"Rank {ranks[process]} of the training failed: {_last_line(said)}")
    finally:
        for process in left:
            os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)


def _forked(rank: int, workers: int, port: int, be_rank: Callable[[int], None], complaints: Path) -> int:
    """The process's id; in the child this never returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    if process := os.fork():
        return process
    code = 1
    try:
        file = os.open(complaints, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = os.fdopen(file, "w", buffering=1, encoding="utf-8", errors="replace")
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers}
        os.environ |= {name: str(number) for name, number in numbers.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        be_rank(rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def free_port() -> int:
    """Below those that outgoing connections get: one of them might take it before the ranks do."""
    while True:
        port = LOWEST_PORT + secrets.randbelow(FIRST_OUTGOING_PORT - LOWEST_PORT)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port
