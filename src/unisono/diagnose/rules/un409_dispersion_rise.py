"""UN409: the workers' losses lie further and further apart, while the mean loss does not fall."""

from __future__ import annotations

from unisono.diagnose.rules.shared.dispersion_shifts import SPAN, Drift
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.records import StepRecord

LEVEL = (0.98, 1.3)
"""A loss in this range of its earlier value has neither fallen nor blown up."""


class DispersionRise(Statistical):
    """The workers' losses drift apart"""

    code, slug, severity = "UN409", "dispersion-rise", "warning"
    pattern = "Gradual Divergence (loss)"
    source = "loss dispersion manual, section 4"
    meaning = (
        "Over six stretches of 250 steps the standard deviation of the loss across workers rose from each to the next, "
        "to more than twice its value, while the mean loss neither fell nor rose much. The first 500 steps do not "
        "count: in them the dispersion rises in healthy runs, because untrained models are wrong everywhere alike."
    )
    correction = (
        "The manual blames precision drift. Whether the weights differ is compared bit for bit (UN301); without that, "
        "growing dispersion speaks of the data."
    )
    needs = "two or more workers and 2,000 steps with their losses"
    causes = {
        "data-drift": "the data of the workers become less alike: other files, other sources, sorted data",
        "replicas-differ": "the workers' weights drift apart",
    }
    remedies = {
        "data-drift": ("shuffle across files before sharding, so that every worker sees every kind of data",),
        "replicas-differ": ("broadcast the weights of one rank, and see UN301 for the parameter that differed first",),
    }

    def forget(self) -> None:
        self._drift = Drift()

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if not self._drift.add(record):
            return
        if self._drift.spreading and LEVEL[0] <= self._drift.losses.growth <= LEVEL[1]:
            self._accuse(record, run_state)
        else:
            self.passed(record.step)

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        differ = run_state.comparable.replicas_differ
        self.report(
            record.step,
            run_state,
            why=(
                f"the losses of the workers lie {self._drift.spreads.growth:.3g} times as far apart as "
                f"{SPAN} steps ago, rising all the time; the mean loss has not fallen"
            ),
            causes={"data-drift": 0.6} | ({"replicas-differ": 0.9} if differ else {"replicas-differ": 0.2}),
            evidence={"loss_std": self._drift.spreads.medians[-1], "loss_std_before": self._drift.spreads.medians[0]},
        )
