"""MLflow: numbers as metrics and findings as tags of the run that the script itself has started."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from unisono.common.errors import UserError
from unisono.records.finding import Finding
from unisono.show.sinks.names import METRICS, checked_style, slashed
from unisono.show.sinks.sink import OpenSink, Sink, SinkReading, SinkRun
from unisono.show.sinks.words import sentence

MOST_METRICS = 1_000
"""In one request; the server takes no more."""

LONGEST_TAG = 5_000


@dataclass(frozen=True)
class MLflow(Sink):
    """
    :param names: `unisono`, or `manuals` for the manuals' names where they have one.
    """

    name = "mlflow"
    package = "mlflow"

    names: str = "unisono"

    def __post_init__(self) -> None:
        checked_style(self.names)

    def open(self, run: SinkRun) -> OpenSink:
        return _MLflowRun(run.part, self.names)


class _MLflowRun(OpenSink):
    seconds = 5.0

    def __init__(self, part: str, style: str) -> None:
        self._names = slashed(part, style)
        self._tags = f"unisono.{part}." if part else "unisono."
        self._run_id: str | None = None

    def metrics(self, readings: Sequence[SinkReading]) -> None:
        run_id = self._active_run_id()
        entities = import_module("mlflow.entities")
        for some in _in_requests(readings):
            metrics = [
                entities.Metric(self._names[name], value, int(1_000 * reading.time), reading.step)
                for reading in some
                for name, value in reading.values.items()
            ]
            self._client().log_batch(run_id, metrics=metrics)

    def finding(self, finding: Finding) -> None:
        self._tag(finding.code, sentence(finding))

    def close(self, verdict: str) -> None:
        if self._run_id is not None:
            self._tag("verdict", verdict)

    def _tag(self, name: str, text: str) -> None:
        run_id = self._active_run_id()
        self._client().set_tag(run_id, self._tags + name, text[:LONGEST_TAG])

    def _client(self) -> Any:
        return import_module("mlflow").MlflowClient()

    def _active_run_id(self) -> str:
        """The script's run, also after its end unless another has begun. It may begin long after us."""
        stacks = _active_runs()
        if stacks and self._run_id not in {run.info.run_id for stack in stacks for run in stack}:
            # The thread that began a run last is the one that trains; its first run holds the others.
            newest = max(stacks, key=lambda stack: stack[-1].info.start_time)
            self._run_id = newest[0].info.run_id
        if self._run_id is None:
            raise UserError("no MLflow run is active in the process of rank 0: call `mlflow.start_run` there")
        return self._run_id


def _active_runs() -> list[list[Any]]:
    """Of each thread, the outermost first. `mlflow.active_run` knows the calling thread's only."""
    fluent = sys.modules.get("mlflow.tracking.fluent")
    by_thread = getattr(getattr(fluent, "_active_run_stack", None), "get_all_thread_values", None)
    if by_thread is not None:
        return [runs for stack in by_thread().values() if (runs := list(stack))]
    find = getattr(fluent, "_get_latest_active_run", None) or getattr(fluent, "active_run", None)
    latest = None if find is None else find()
    return [] if latest is None else [[latest]]


def _in_requests(readings: Sequence[SinkReading]) -> Iterator[Sequence[SinkReading]]:
    size = MOST_METRICS // len(METRICS)
    for start in range(0, len(readings), size):
        yield readings[start : start + size]
