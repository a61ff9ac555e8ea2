"""`unisono demo`: the same training twice on this machine, healthy and with a fault, or without a guard and with it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from unisono.common.errors import UserError
from unisono.lab.launching import follow, torchrun
from unisono.records import StepRecord
from unisono.records.decision_text import actions_of
from unisono.records.runfile import RUNS, new_run_dir, read_run
from unisono.show import REPORT
from unisono.show.analysis.checkup import Checkup, count, examine
from unisono.show.text.findings import as_text
from unisono.show.text.side_by_side import side_by_side

LAST_STEPS = 16
"""The loss at the end is their mean."""

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


def show_guarded(fault: str, workers: int, out: str | None, width: int, colour: bool) -> str:
    """Trains with the same fault twice, and returns how each training ended and what unisono found."""
    folder = Path(out) if out else new_run_dir(RUNS, "demo")
    runs = {"without the guard": folder / "unguarded", "with the guard": folder / "guarded"}
    _train("without the guard", [fault], workers, runs["without the guard"])
    try:
        _train("with the guard", [fault], workers, runs["with the guard"], "--guard")
    except UserError:
        if not _was_halted(runs["with the guard"]):
            raise
    steps = {name: read_run(path).timeline() for name, path in runs.items()}
    found = {name: examine(path) for name, path in runs.items()}
    outcomes = [f"{name}: {outcome(steps[name], found[name])}" for name in runs]
    told = [f"== {name}\n{as_text(checkup, width, colour)}" for name, checkup in found.items()]
    return "\n\n".join([side_by_side(steps), *told, _pages(list(runs.values())), "\n".join(outcomes)])


def outcome(steps: Sequence[StepRecord], checkup: Checkup) -> str:
    """How a training ended, in a sentence."""
    lost_since = first_of_the_broken_end(steps)
    last = [record.loss_mean for record in steps[-LAST_STEPS:] if record.loss_mean is not None]
    acted = f"; the guard {checkup.decision_counts.words()}" if checkup.decision_counts.decided else ""
    if lost_since is not None:
        return f"lost, no finite loss from step {lost_since:,} on{acted}"
    if not last:
        return f"no loss was heard{acted}"
    mean = math.fsum(last) / len(last)
    return f"loss {mean:.3g} at the end, after {count(len(steps), 'step')}{acted}"


def first_of_the_broken_end(steps: Sequence[StepRecord]) -> int | None:
    """The step from which on no loss was a finite number; `None` where the last one is."""
    first = None
    for record in reversed(steps):
        if record.loss_mean is None or math.isfinite(record.loss_mean):
            break
        first = record.step
    return first


def _was_halted(run: Path) -> bool:
    return any("halt" in actions_of(record) for record in examine(run).decision_counts.newest)


def _pages(runs: list[Path]) -> str:
    """Where the report of each run is; it needs a package that a first try may do without."""
    if find_spec("bokeh") is None:
        return 'With pip install "unisono[report]" the demo also draws a page of each run.'
    from unisono.show.page.page_file import write_report

    for run in runs:
        write_report(run, run / REPORT)
    return "\n".join(["To look at in a browser:", *(f"  {run / REPORT}" for run in runs)])


def _train(name: str, arguments: list[str], workers: int, run_dir: Path, *options: str) -> None:
    listening = [sys.executable, "-m", "unisono", "run", "--every", "1", "--out", str(run_dir), *options, "--"]
    follow([*listening, *torchrun(workers, JOB, *arguments)], f"{name}: {workers} workers, step")
