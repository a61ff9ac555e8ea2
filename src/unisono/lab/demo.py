"""`unisono demo`: the same training twice on this machine, once healthy and once with a silent fault."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from unisono.errors import UserError
from unisono.records import StepRecord
from unisono.report.side_by_side import side_by_side
from unisono.runfile import RUNS, new_run_dir, read_run

FAULTS = ("duplicated-data",)
JOB = Path(__file__).with_name("demo_job.py")


def check_torch() -> None:
    if find_spec("torch") is None:
        raise UserError('The demo trains, so it needs torch. Found none. Install it with: pip install "unisono[torch]"')


def show(fault: str, workers: int, out: str | None) -> str:
    """Trains, and returns the comparison as text."""
    folder = Path(out) if out else new_run_dir(RUNS, "demo")
    healthy = _train(None, workers, folder / "healthy")
    faulty = _train(fault, workers, folder / fault)
    return side_by_side({"healthy": healthy, fault: faulty})


def _train(fault: str | None, workers: int, run_dir: Path) -> tuple[StepRecord, ...]:
    name = fault or "healthy"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command = [sys.executable, "-m", "unisono", "run", "--out", str(run_dir), "--", *launcher, str(JOB)]
    command += ["--fault", fault] if fault else []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, encoding="utf-8"
    )
    for line in process.stdout or ():
        _progress(f"{name}: {workers} workers, step {line.strip()}")
    _, complaint = process.communicate()
    _progress("")
    if process.returncode:
        raise UserError(f"The demo's training ended with exit code {process.returncode}: {_last_line(complaint)}")
    return read_run(run_dir).timeline()


def _progress(text: str) -> None:
    """One line that is drawn anew on a terminal, and a line per tenth of the way elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
    elif text:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
