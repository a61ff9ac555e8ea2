"""What the rules share that first learn what is usual in a run."""

from __future__ import annotations

from typing import ClassVar

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.records import AttemptRecord, StepRecord


class Statistical(Rule):
    """Passes on the steps that can be compared, and forgets what it learnt when they no longer can."""

    forgets_at_jumps: ClassVar[bool] = True
    """Whether a sudden change of the learning rate makes the past useless; it does not where workers are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self.forget()

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        """At a step that can be compared, as most can, this comes to `hear` alone."""
        comparable = run_state.comparable
        if comparable.turned and (comparable.broken or self.forgets_at_jumps):
            self.forget()
        if comparable.usable:
            self.hear(record, run_state)

    def forget(self) -> None:
        raise NotImplementedError

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        raise NotImplementedError
