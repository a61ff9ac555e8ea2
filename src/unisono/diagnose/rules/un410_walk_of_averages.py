"""UN410: the mean loss falls while the workers' losses drift apart."""

from __future__ import annotations

import math

from unisono.diagnose.rules.shared.dispersion_shifts import LASTING, Rise
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.records import StepRecord

FALLING = 0.99
FALLEN = 0.95
"""Of its earlier value: the loss falls while the dispersion keeps its level, and has fallen further as it rises."""

FELL_BACK = 0.7
"""Of the dispersion that was told: it is not over when only the mean has stopped falling."""

CONFIRMING = ("UN102", "UN202", "UN301", "UN302", "UN303", "UN406", "UN501")
"""Findings that say by other evidence that the workers differ. UN105 is no other evidence: the losses say that, too."""


class WalkOfAverages(Statistical):
    """The mean loss falls, but the workers drift apart"""

    code, slug, severity = "UN410", "walk-of-averages", "critical"
    pattern = "Critical Warning"
    source = "loss dispersion manual, section 5"
    meaning = (
        "The standard deviation of the loss across workers had kept its level for 300 steps while the mean loss fell; "
        "now it is 1.6 times as large or more for 100 steps, and the mean loss has fallen further. The average looks "
        "fine, but the workers agree less and less on what is being learnt: pause, and audit whether replicas are "
        "equal and how the data are sharded and shuffled. Without such a level it is told where the same workers' "
        "losses are the high ones all the time. Critical if the workers' weights were found to differ, or if another "
        "check says that the workers differ (UN102, UN202, UN301, UN302, UN303, UN406, UN501). Where one worker's data "
        "differ (UN105), that explains it."
    )
    correction = (
        "The manual calls it catastrophic by itself. Dispersion rises in healthy runs as well: early on, because an "
        "untrained model is wrong everywhere alike, and against the mean, when few hard samples make up most of a loss "
        "that falls."
    )
    needs = "two or more workers and 450 steps with their losses, none of them below zero"
    causes = {
        "replicas-differ": "the workers' weights drift apart: each one fits its own shard",
        "data-drift": "the data of the workers become less alike: other files, other sources",
        "not-shuffled": "the batches become less mixed: sorted data, or a shuffling buffer that runs dry",
        "hard-samples": "few hard or mislabelled samples make up a growing part of the loss",
    }
    remedies = {
        "replicas-differ": ("pause training, and see UN301 for the parameter that differed first and why",),
        "data-drift": (
            "pause training and audit the sharding: what does each worker read since then, by file and source? Shuffle "
            "across files before sharding, so that every worker sees every kind of data",
        ),
        "not-shuffled": (
            "pause training and audit the shuffling: how many classes or sources does one batch hold, now and before? "
            "Enlarge the shuffling buffer, or shuffle the files",
        ),
        "hard-samples": ("look at the batches that stood out (`unisono batches RUN`)",),
    }
    explains = ("UN409",)

    def __init__(self) -> None:
        self._told = math.inf
        super().__init__()

    def forget(self) -> None:
        self._rise = Rise(FALLING)

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if not self._rise.add(record):
            return
        if self._rise.rose and self._rise.loss_growth < FALLEN:
            self._accuse(record, run_state)
        elif self._rise.spread <= FELL_BACK * self._told:
            self.passed(record.step)

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        self._told = self._rise.spread
        differ, rise = run_state.comparable.replicas_differ, self._rise
        confirmed = [code for code in CONFIRMING if run_state.is_held(code)]
        lasting = {"data-drift": 0.7, "hard-samples": 0.2} if rise.lasting > LASTING else {}
        self.report(
            record.step,
            run_state,
            why=(
                f"the mean loss fell from {rise.loss_before:.3g} to {rise.loss:.3g} while the standard deviation of "
                f"the workers' losses rose from {rise.spread_before:.3g} to {rise.spread:.3g}: pause and audit"
                + (f"; confirmed by {', '.join(confirmed)}" if confirmed else "")
            ),
            causes={"replicas-differ": 0.9} if differ else lasting or {"not-shuffled": 0.5, "hard-samples": 0.4},
            severity="critical" if differ or confirmed else "warning",
            evidence={
                "loss_growth": round(rise.loss_growth, 4),
                "loss_std_growth": round(rise.growth, 4),
                "lasting_share": round(rise.lasting, 3),
            },
        )
