"""`unisono demo`: the same training twice on this machine, once healthy and once with a silent fault."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from unisono.errors import UserError
from unisono.lab.launching import follow, torchrun
from unisono.report import REPORT
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
    _train("healthy", [fault, "--healthy"], workers, runs["healthy"])
    _train(fault, [fault], workers, runs[fault])
    told = [f"== {name}\n{as_text(examine(path), width, colour)}" for name, path in runs.items()]
    curves = side_by_side({name: read_run(path).timeline() for name, path in runs.items()})
    return "\n\n".join([curves, *told, _pages(list(runs.values()))])


def _pages(runs: list[Path]) -> str:
    """Where the report of each run is; it needs a package that a first try may do without."""
    if find_spec("bokeh") is None:
        return 'With pip install "unisono[report]" the demo also draws a page of each run.'
    from unisono.report.page.file import write_report

    for run in runs:
        write_report(run, run / REPORT)
    return "\n".join(["To look at in a browser:", *(f"  {run / REPORT}" for run in runs)])


def _train(name: str, arguments: list[str], workers: int, run_dir: Path) -> None:
    listening = [sys.executable, "-m", "unisono", "run", "--every", "1", "--out", str(run_dir), "--"]
    follow([*listening, *torchrun(workers, JOB, *arguments)], f"{name}: {workers} workers, step")
