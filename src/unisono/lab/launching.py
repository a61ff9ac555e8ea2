"""Starts the lab's scripts as real processes on this machine, and shows how far they are. Without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from unisono.common.errors import UserError


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
            _progress(f"{title} {line.strip()}")
    _progress("")
    return process.returncode


def _progress(text: str) -> None:
    """One line that is drawn anew on a terminal, and a line per sign of life elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
    elif text:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
