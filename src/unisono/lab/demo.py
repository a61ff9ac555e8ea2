"""`unisono demo`: the same training twice on this machine, once healthy and once with a silent fault."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from unisono.errors import UserError
from unisono.report.checkup import examine
from unisono.report.findings import as_text
from unisono.report.side_by_side import side_by_side
from unisono.runfile import RUNS, new_run_dir, read_run

JOB = Path(__file__).with_name("demo_job.py")


def check_torch() -> None:
    if find_spec("torch") is None:
        raise UserError('The demo trains, so it needs torch. Found none. Install it with: pip install "unisono[torch]"')


def show(fault: str, workers: int, out: str | None, width: int, colour: bool) -> str:
    """Trains, and returns what unisono found, with the two runs side by side."""
    folder = Path(out) if out else new_run_dir(RUNS, "demo")
    runs = {"healthy": folder / "healthy", fault: folder / fault}
    _train(None, workers, runs["healthy"])
    _train(fault, workers, runs[fault])
    told = [f"== {name}\n{as_text(examine(path), width, colour)}" for name, path in runs.items()]
    curves = side_by_side({name: read_run(path).timeline() for name, path in runs.items()})
    return "\n\n".join([curves, *told])


def _train(fault: str | None, workers: int, run_dir: Path) -> None:
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
