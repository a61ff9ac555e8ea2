"""One round of deciding: all workers report, the first one decides, and all do what it says."""

from __future__ import annotations

from unisono.act.guard.decider import Decider
from unisono.act.guard.decision_log import DecisionLog
from unisono.act.guard.device_round import DeviceRound, supports
from unisono.act.guard.executor import NOTHING, Executor
from unisono.act.guard.guarded_state import GuardedState
from unisono.act.guard.local_report import LocalReport
from unisono.act.guard.policy import Decision
from unisono.act.guard.reporter import Reporter
from unisono.exchange.collectives import GuardCollectives
from unisono.exchange.guard_messages import RankReport, RoundResult
from unisono.records import DecisionRecord

KNOWN_AFTER = 3
"""Rounds after which all optimizers of a loop have been seen."""


class DecisionRound:
    """:param may_be_late: What is asked for leaves it to the device whether a step counts."""

    def __init__(
        self,
        collectives: GuardCollectives,
        guarded_state: GuardedState,
        executor: Executor,
        decider: Decider,
        decision_log: DecisionLog,
        reporter: Reporter,
        may_be_late: bool,
    ) -> None:
        self.own = LocalReport(guarded_state.parameters, collectives.rank, collectives.world)
        self.device_round = DeviceRound(collectives, guarded_state.device)
        self.step = 0
        """As the workers agreed in their last round."""

        self.leaving = self.over = False
        self._collectives, self._guarded_state, self._executor = collectives, guarded_state, executor
        self._decider, self._decision_log, self._reporter = decider, decision_log, reporter
        self._may_be_late, self._rounds = may_be_late, 0

    @property
    def decisions(self) -> list[DecisionRecord]:
        return list(self._decision_log.decisions)

    def hold(self, nth: int) -> None:
        """:param nth: Which synchronised pass of its step this is."""
        self._rounds += 1
        if self.device_round.begun:
            self._hold_round_on_device(nth)
            return
        report = self.own.report(self._report())
        result = self._collectives.hold(report, lambda reports: self._decider.consider(reports, nth))
        self.step = result.step
        self._follow_result(result)
        if result.late:
            self.device_round.begin(result.norm_limit)

    def _hold_round_on_device(self, nth: int) -> None:
        self.step = self._reporter.step_now()
        report, device = self._report(), self._guarded_state.device
        result = self.device_round.hold(
            lambda numbers_N: self.own.fill_in(report, numbers_N, device), nth, self._decider.consider
        )
        for buffer, before in self._executor.buffers.remembered:
            self.device_round.leave_out(before, buffer)
        if result is not None:
            self._follow_result(result)
            if not result.late:
                self.device_round.end()

    def _report(self) -> RankReport:
        """Without what only the device knows."""
        can_wait = self._rounds > KNOWN_AFTER and supports(self._guarded_state.optimizers)
        return RankReport(
            step=self._reporter.step_now(),
            loss=None,
            finite=None,
            share_square=None,
            scaled=False,
            leaving=self.leaving,
            chain=self._decision_log.chain,
            may_be_late=self._may_be_late and can_wait,
            held=() if self._executor.store is None else self._executor.store.held(),
        )

    def _follow_result(self, result: RoundResult) -> None:
        if result.ends:
            self.over = True
            self._reporter.ended(result.ends, self._decider.apart)
            return
        decision = Decision.from_json(result.decision.decode()) if result.decision else None
        store = self._executor.store
        if store is not None and result.quiet:
            store.quiet(result.step)
        elif store is not None:
            store.trouble(result.step if decision is None else decision.begun)
        if decision is not None:
            self._act(decision, result.decision)
        # Not before: a checkpoint that is too old by now may be the one to go back to.
        if store is not None and result.agreed in store.held():
            store.agreed(result.agreed)
        self._reporter.tell_of_broken_rows(self._decider.broken_rows)
        self._reporter.tell_of_used_up(self._decider.used_up)

    def _act(self, decision: Decision, sent: bytes) -> None:
        record = self._decision_log.enter(decision, sent)
        if decision.dry:
            self._reporter.decided(record)
        elif {"resync", "roll-back"} & set(decision.actions):
            self._act_and_tell(decision, record)
        else:
            # Before it is done: a worker that dies meanwhile leaves the reason behind.
            self._reporter.decided(record)
            self._carry_out(decision)

    def _act_and_tell(self, decision: Decision, record: DecisionRecord) -> None:
        outcome = self._carry_out(decision)
        if outcome == NOTHING and not decision.counted:
            self._decision_log.strike(record)
            return
        self._reporter.decided(self._decision_log.add_outcome(record, outcome, self._executor.overwritten))
        if not decision.counted:
            self._decider.charge(decision)

    def _carry_out(self, decision: Decision) -> str:
        # On the device the step was left out at once.
        return self._executor.carry_out(decision, but=("skip",) if self.device_round.begun else ())
