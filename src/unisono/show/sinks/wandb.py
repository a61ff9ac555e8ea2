"""Weights & Biases: numbers, alerts and a summary in the run that the script itself has started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unisono.common.errors import UserError
from unisono.records.finding import Finding
from unisono.show.sinks.names import MANUALS, STEP, checked_style, slashed
from unisono.show.sinks.sink import OpenSink, Sink, SinkReading, SinkRun
from unisono.show.sinks.words import headline, lines, sentence

LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}
LONGEST_TITLE = 63


@dataclass(frozen=True)
class WandB(Sink):
    """
    :param names: `unisono`, or `manuals` for the manuals' names where they have one.
    """

    name = "wandb"
    package = "wandb"
    only_latest = True
    """A row of the script's history has one place for each number."""

    names: str = "unisono"

    def __post_init__(self) -> None:
        checked_style(self.names)

    def open(self, run: SinkRun) -> OpenSink:
        return _WandBRun(run.part, self.names)


class _WandBRun(OpenSink):
    def __init__(self, part: str, style: str) -> None:
        self._names, self._style = slashed(part, style), style
        self._home = self._names[STEP].removesuffix(STEP)
        self._prepared: Any = None

    def metrics(self, readings: Sequence[SinkReading]) -> None:
        run = self._active()
        if run is not None:
            newest = readings[-1]
            row = {self._names[name]: value for name, value in newest.values.items()}
            # Without `commit` the numbers join the row the script is about to finish, and its step stays its own.
            run.log({self._names[STEP]: newest.step, **row}, commit=False)

    def finding(self, finding: Finding) -> None:
        run = self._active()
        if run is None:
            raise UserError("the script has finished its W&B run")
        run.summary[self._home + finding.code] = sentence(finding)
        if finding.at_least("warning"):
            title = headline(finding)[:LONGEST_TITLE]
            run.alert(title=title, text="\n".join(lines(finding)), level=LEVELS[finding.severity])

    def close(self, verdict: str) -> None:
        run = self._active() if self._prepared is not None else None
        if run is not None:
            run.summary[f"{self._home}verdict"] = verdict

    def _active(self) -> Any:
        """The script's run; None when it has ended. It may begin long after us, so it is looked up each time."""
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is None and self._prepared is None:
            raise UserError("no W&B run is active in the process of rank 0: call `wandb.init` there")
        if run is not None and run is not self._prepared:
            self._prepare(run)
            self._prepared = run
        return run

    def _prepare(self, run: Any) -> None:
        step = self._names[STEP]
        run.define_metric(step)
        run.define_metric(f"{self._home}*", step_metric=step)
        for name in MANUALS.values() if self._style == "manuals" else ():
            run.define_metric(name, step_metric=step)
