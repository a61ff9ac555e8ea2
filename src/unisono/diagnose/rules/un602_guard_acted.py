"""UN602: what the guard has done."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import DecisionRecord
from unisono.records.decision_text import ranks_of


class GuardActed(Rule):
    """The guard has acted"""

    code, slug, severity = "UN602", "guard-acted", "info"
    source = "gradient norm manual, sections 3 and 4"
    meaning = (
        "The guard skipped a step, clipped, reset the momentum, made replicas equal again, rolled back or stopped the "
        "job, as it was asked to, at the same step on all workers. What a dry run would have done is told too. Nothing "
        "needs to be done about a single act; many of them point to a fault that should be found."
    )
    needs = "a guard, which is off unless asked for"
    causes = {"guarded-step": "a step met a condition that the guard was asked to act on"}
    remedies = {
        "guarded-step": ("if it acts often, its reasons and the other findings tell where to look for the fault",)
    }

    def on_decision(self, record: DecisionRecord, run_state: RunState) -> None:
        last = "the last time " if run_state.decision_counts.decided > 1 else ""
        self.report(
            record.step,
            run_state,
            why=f"the guard {run_state.decision_counts.words()}, {last}because {record.reason}",
            causes={},
            ranks=ranks_of(record),
            evidence=run_state.decision_counts.counts(),
        )
