"""`unisono lab paper gaf`: trains what the table lacks, several at a time on a GPU, and writes each run as it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unisono.lab.experiments.catalogue import Order
from unisono.lab.experiments.gaf.images import ImageData, cifar100, generated
from unisono.lab.experiments.gaf.plan import IDENTITY, RunPlan, RunTable, full_table, small_table
from unisono.lab.experiments.gaf.training import FilteredTraining
from unisono.lab.experiments.results import Results, Run
from unisono.lab.launching import progress

SIDE_BY_SIDE = {"cuda": 12, "cpu": 1}
SAVED_EVERY = 120.0
"""Seconds, at the next end of an epoch."""

CURVE = 30
"""Points that are kept of a curve over the epochs, the last one among them."""


def run(order: Order) -> str:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    results = Results(order.out, IDENTITY)
    data = (generated() if order.data is None else cifar100(order.data)).to(device)
    table = small_table(data.classes) if order.small else full_table()
    session = _Session(table, results, data, device, order, width=8 if order.small else 64)
    session.train_until(time.monotonic() + 60 * order.minutes)
    progress("")
    return table.progress(results)


@dataclass
class _Going:
    training: FilteredTraining
    steps: Iterator[bool]
    saved: float


class _Session:
    def __init__(
        self, table: RunTable, results: Results, data: ImageData, device: torch.device, order: Order, width: int
    ) -> None:
        self._table, self._results, self._data, self._device = table, results, data, device
        self._order, self._width = order, width
        self._going: dict[RunPlan, _Going] = {}

    def train_until(self, end: float) -> None:
        """Runs take turns, step by step: while one waits for its inner products, the GPU computes those of others."""
        self._fill()
        while self._going:
            for plan, going in list(self._going.items()):
                with torch.cuda.stream(going.training.stream):
                    epoch_is_over = next(going.steps)
                    if epoch_is_over:
                        self._after_epoch(plan, going, end)
            if time.monotonic() < end:
                self._fill()

    def _fill(self) -> None:
        """As many as go side by side; those that were interrupted first."""
        free = SIDE_BY_SIDE[self._device.type] - len(self._going)
        if free <= 0:
            return
        plans = [plan for plan in self._table.missing(self._results) if plan not in self._going]
        plans.sort(key=lambda plan: not self._checkpoint(plan).exists())
        for plan in plans[:free]:
            training = FilteredTraining(plan, self._data, self._device, self._width)
            if self._checkpoint(plan).exists():
                with torch.cuda.stream(training.stream):
                    training.load(self._checkpoint(plan))
            self._going[plan] = _Going(training, training.train(), time.monotonic())

    def _after_epoch(self, plan: RunPlan, going: _Going, end: float) -> None:
        now, training = time.monotonic(), going.training
        progress(f"{plan.name}: epoch {training.epoch} of {plan.epochs}, test {training.history['test'][-1]:.1%}")
        if training.epoch == plan.epochs:
            self._results.add(self._row(training))
            self._checkpoint(plan).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._checkpoint(plan).parent.rmdir()
            del self._going[plan]
        elif now >= end or now - going.saved > SAVED_EVERY:
            self._checkpoint(plan).parent.mkdir(exist_ok=True)
            training.save(self._checkpoint(plan))
            going.saved = now
            if now >= end:
                del self._going[plan]

    def _row(self, training: FilteredTraining) -> Run:
        plan, history = training.plan, training.history
        by_validation = history["test"][history["validation"].index(max(history["validation"]))]
        curves = {name: thinned(values) for name, values in history.items() if name not in ("tuning", "skipped")}
        return plan.fields() | {
            "best": max(history["test"]),
            "final": history["test"][-1],
            "best_by_validation": by_validation,
            "tuning_accuracy": history["tuning"][-1],
            "skipped": round(sum(history["skipped"]) / len(history["skipped"]), 4),
            **curves,
            "skipped_over_time": thinned(history["skipped"]),
            "device": torch.cuda.get_device_name() if self._device.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "command": self._order.command,
        }

    def _checkpoint(self, plan: RunPlan) -> Path:
        return self._results.path.with_suffix(".unfinished") / f"{plan.name}.pt"


def thinned(values: list[Any]) -> list[Any]:
    """With the first and the last."""
    if len(values) <= CURVE:
        return values
    return [values[round(place * (len(values) - 1) / (CURVE - 1))] for place in range(CURVE)]
