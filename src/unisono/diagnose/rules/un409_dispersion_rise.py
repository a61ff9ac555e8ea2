"""UN409: the workers' losses lie further and further apart, while the mean loss does not fall."""

from __future__ import annotations

from unisono.diagnose.rules.shared.dispersion_shifts import Rise
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.records import StepRecord

LEVEL = (0.95, 1.3)
"""A loss in this range of its earlier value has neither fallen much nor blown up."""


class DispersionRise(Statistical):
    """The workers' losses drift apart"""

    code, slug, severity = "UN409", "dispersion-rise", "warning"
    pattern = "Gradual Divergence (loss)"
    source = "loss dispersion manual, section 4"
    meaning = (
        "The standard deviation of the loss across workers had kept its level for 300 steps; now it is 1.6 times as "
        "large or more for 100 steps, while the mean loss neither fell nor rose much. The early rise of healthy runs, "
        "in which untrained models are wrong everywhere alike, starts from no such level."
    )
    correction = (
        "The manual blames precision drift. Whether the weights differ is compared bit for bit (UN301); without that, "
        "growing dispersion speaks of the data."
    )
    needs = "two or more workers and 450 steps with their losses, none of them below zero"
    causes = {
        "data-drift": "the data of the workers become less alike: other files, other sources, sorted data",
        "replicas-differ": "the workers' weights drift apart",
    }
    remedies = {
        "data-drift": ("shuffle across files before sharding, so that every worker sees every kind of data",),
        "replicas-differ": ("broadcast the weights of one rank, and see UN301 for the parameter that differed first",),
    }

    def forget(self) -> None:
        self._rise = Rise(LEVEL[1])

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if not self._rise.add(record):
            return
        if self._rise.rose and LEVEL[0] <= self._rise.loss_growth <= LEVEL[1]:
            self._accuse(record, run_state)
        else:
            self.passed(record.step)

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        differ, rise = run_state.comparable.replicas_differ, self._rise
        self.report(
            record.step,
            run_state,
            why=(
                f"the standard deviation of the workers' losses rose from {rise.spread_before:.3g} to "
                f"{rise.spread:.3g}, while the mean loss stays at {rise.loss:.3g}"
            ),
            causes={"data-drift": 0.6} | ({"replicas-differ": 0.9} if differ else {"replicas-differ": 0.2}),
            evidence={"loss_std": rise.spread, "loss_std_before": rise.spread_before},
        )
