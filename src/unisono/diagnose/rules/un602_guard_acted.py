"""UN602: what the guard has done."""

from __future__ import annotations

from collections import deque

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import DecisionRecord, NoteRecord
from unisono.records.decision_text import actions_of, ranks_of

OFTEN, WITHIN = 4, 1_000
"""Acts within so many steps after which the fault is said to last; clipping is an everyday matter."""


class GuardActed(Rule):
    """The guard has acted"""

    code, slug, severity = "UN602", "guard-acted", "info"
    source = "gradient norm manual, sections 3 and 4"
    meaning = (
        "The guard skipped a step, clipped, reset the momentum, made replicas equal again, rolled back or stopped the "
        "job, as it was asked to, at the same step on all workers. What a dry run would have done is told too. Nothing "
        "needs to be done about a single act; many of them point to a fault that should be found. Skipping, resetting "
        "and repairing go on for as long as they are asked for; roll-backs end after three within 1,000 steps. The job "
        'is stopped for that only where it was asked for: halt=["UN602"].'
    )
    needs = "a guard, which is off unless asked for"
    causes = {
        "guarded-step": "a step met a condition that the guard was asked to act on",
        "fault-lasts": "the fault comes again: an act takes its effect away, not its cause",
    }
    remedies = {
        "guarded-step": ("if it acts often, its reasons and the other findings tell where to look for the fault",),
        "fault-lasts": (
            "look for the fault where the reasons of the acts and the other findings point: a batch, a worker, the "
            "learning rate",
            'to have such a job stopped, ask for it: unisono.guard(halt=["UN602"])',
        ),
    }

    def __init__(self) -> None:
        super().__init__()
        self._newest: deque[int] = deque(maxlen=OFTEN)

    def on_decision(self, record: DecisionRecord, run_state: RunState) -> None:
        if actions_of(record) != ["clip"]:
            self._newest.append(record.step)
        lasts = len(self._newest) == OFTEN and abs(record.step - self._newest[0]) < WITHIN
        last = "the last time " if run_state.decision_counts.decided > 1 else ""
        often = f"; {OFTEN} times and more within {WITHIN:,} steps" if lasts else ""
        self.report(
            record.step,
            run_state,
            why=f"the guard {run_state.decision_counts.words()}, {last}because {record.reason}{often}",
            causes={"fault-lasts": 0.7} if lasts else {},
            ranks=ranks_of(record),
            evidence=run_state.decision_counts.counts(),
        )

    def on_note(self, record: NoteRecord, run_state: RunState) -> None:
        if record.about == "roll-backs-used-up":
            self.report(
                record.step,
                run_state,
                why=f"it rolls back no more: {record.text}",
                causes={"fault-lasts": 0.7},
                about="roll-backs",
            )
