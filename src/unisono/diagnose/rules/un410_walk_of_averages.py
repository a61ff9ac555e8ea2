"""UN410: the mean loss falls while the workers' losses drift apart."""

from __future__ import annotations

from unisono.diagnose.rules.shared.dispersion_shifts import SPAN, Drift
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.records import StepRecord

FALLEN = (0.8, 0.98)
"""A loss in this range of its earlier value falls slowly. While it falls fast, its dispersion may well rise."""


class WalkOfAverages(Statistical):
    """The mean loss falls, but the workers drift apart"""

    code, slug, severity = "UN410", "walk-of-averages", "critical"
    pattern = "Critical Warning"
    source = "loss dispersion manual, section 5"
    meaning = (
        "Over six stretches of 250 steps the standard deviation of the loss across workers rose from each to the next, "
        "to more than twice its value, while the mean loss fell by 2 to 20 %. The average looks fine, but the workers "
        "agree less and less on what is being learnt. Critical only if their weights were found to differ as well."
    )
    correction = (
        "The manual calls it catastrophic by itself. Dispersion can rise in healthy runs: early on, because an "
        "untrained model is wrong everywhere alike, and later, when few hard samples make up most of the loss."
    )
    needs = "two or more workers and 2,000 steps with their losses"
    causes = {
        "replicas-differ": "the workers' weights drift apart: each one fits its own shard",
        "data-drift": "the data of the workers become less alike",
        "hard-samples": "few hard or mislabelled samples make up a growing part of the loss",
    }
    remedies = {
        "replicas-differ": ("stop, and see UN301 for the parameter that differed first and why",),
        "data-drift": ("shuffle across files before sharding, so that every worker sees every kind of data",),
        "hard-samples": ("look at the batches that stood out (`unisono batches RUN`)",),
    }
    explains = ("UN409",)

    def forget(self) -> None:
        self._drift = Drift()

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if not self._drift.add(record):
            return
        if self._drift.spreading and FALLEN[0] <= self._drift.losses.growth <= FALLEN[1]:
            self._accuse(record, run_state)
        else:
            self.passed(record.step)

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        differ = run_state.comparable.replicas_differ
        spread, loss = self._drift.spreads.growth, self._drift.losses.growth
        self.report(
            record.step,
            run_state,
            why=(
                f"in {SPAN} steps the mean loss fell to {100 * loss:.3g} % while the losses of the "
                f"workers moved to {spread:.3g} times their distance"
            ),
            causes={"replicas-differ": 0.9} if differ else {"data-drift": 0.4, "hard-samples": 0.4},
            severity="critical" if differ else "warning",
            evidence={"loss_growth": round(loss, 4), "loss_std_growth": round(spread, 4)},
        )
