"""`unisono lab paper critical-batch`: trains until the minutes are over, one run after the other."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch

from unisono import __version__
from unisono.lab.experiments.catalogue import Order
from unisono.lab.experiments.critical_batch.fit import FEWEST_SIZES, fitted
from unisono.lab.experiments.critical_batch.plan import IDENTITY, REAL, SMALL, Plan, Task
from unisono.lab.experiments.critical_batch.task import CharacterTask, generated_text, read_text, train
from unisono.lab.experiments.results import Results, Run
from unisono.lab.launching import follow, torchrun
from unisono.records import StepRecord
from unisono.records.runfile import read_run
from unisono.show.analysis.scaling import ENOUGH, NoiseReadings, Outlook, common_share, mean_with_interval, outlook

JOB = Path(__file__).with_name("noise_job.py")
STRETCHES = 10
"""Of a training, in each of which the noise scale is told."""


def run(order: Order) -> str:
    extent = SMALL if order.small else REAL
    task = CharacterTask(generated_text() if order.data is None else read_text(order.data), extent.target)
    results, deadline = Results(order.out, IDENTITY), time.monotonic() + 60 * order.minutes
    while True:
        plan = Plan(extent, results.runs)
        left = [one for one in plan.tasks() if not results.has(one.identity(extent))]
        if not left or time.monotonic() > deadline:
            return told(plan, len(left))
        found = _listened(left[0], order, extent.workers) if left[0].kind == "listened" else _trained(left[0], task)
        made_by = {"command": order.command, "unisono": __version__, "torch": torch.__version__}
        results.add(left[0].identity(extent) | {"most_steps": left[0].most_steps} | found | made_by)


def told(plan: Plan, left: int) -> str:
    """How far it is, and what that says."""
    steps = plan.steps()
    progress = f"{left} runs are left" if left else "all runs are done"
    if len(steps) < FEWEST_SIZES:
        return f"{progress}; the critical batch size takes {FEWEST_SIZES} batch sizes"
    critical = fitted(steps)
    return f"{progress}; critical batch size {critical.value:.3g} ({critical.low:.3g} to {critical.high:.3g})"


def _trained(one: Task, task: CharacterTask) -> Run:
    found = train(task, one.way, one.most_steps)
    return asdict(found) | {"loss": found.loss if math.isfinite(found.loss) else None}


def _listened(one: Task, order: Order, workers: int) -> Run:
    way = one.way
    with tempfile.TemporaryDirectory() as folder:
        data = [] if order.data is None else [str(order.data)]
        arguments = [folder, str(way.batch), str(way.rate), str(way.seed), str(one.most_steps), *data]
        follow(torchrun(workers, JOB, *arguments), f"{workers} workers, step")
        records = read_run(folder).timeline()
    return {"reached": True, "steps": len(records), "workers": workers, **noise(records)}


def noise(records: Sequence[StepRecord]) -> Run:
    """What `unisono scaling` says of the run, and the same stretch by stretch, in samples."""
    readings = NoiseReadings()
    for record in records:
        readings.see(record)
    edges = [len(records) * number // STRETCHES for number in range(STRETCHES + 1)]
    return {
        "scaling": None if readings.missing() else _in_samples(outlook(readings)),
        "stretches": [_stretch(records[first:last]) for first, last in pairwise(edges)],
    }


def _stretch(records: Sequence[StepRecord]) -> Run:
    shares = [known for record in records if (known := common_share(record)) is not None]
    losses = [record.loss_mean for record in records if record.loss_mean is not None]
    first, last = records[0], records[-1]
    workers, samples = len(first.samples_W), first.samples_W[0] if first.samples_W else None
    told: Run = {"first_step": first.step, "last_step": last.step, "loss": fmean(losses) if losses else None}
    if len(shares) < ENOUGH:
        return told
    share = mean_with_interval(shares)
    return told | (_in_samples(Outlook(workers, len(shares), first.step, last.step, samples, share)) or {})


def _in_samples(found: Outlook) -> Run | None:
    critical = found.critical_batch
    if critical is None:
        return None
    return {name: value if math.isfinite(value) else None for name, value in asdict(critical).items()}
