"""What happens at a meeting: words are exchanged, the first worker's verdict is heard, and all do what it says."""

from __future__ import annotations

from unisono.act.guard.decider import Decider
from unisono.act.guard.decision_log import DecisionLog
from unisono.act.guard.device_round import DeviceRound, supports
from unisono.act.guard.executor import NOTHING, Executor
from unisono.act.guard.guarded_state import GuardedState
from unisono.act.guard.local_report import LocalReport
from unisono.act.guard.policy import Decision
from unisono.act.guard.reporter import Reporter
from unisono.exchange.guard_collectives import GuardCollectives
from unisono.exchange.guard_messages import RankReport, RoundResult
from unisono.records import DecisionRecord

KNOWN_AFTER = 3
"""Meetings after which all optimizers of a loop have been seen."""


class DecisionRound:
    """:param may_be_late: What is asked for leaves it to the device whether a step counts."""

    def __init__(
        self,
        council: GuardCollectives,
        holdings: GuardedState,
        deeds: Executor,
        assessor: Decider,
        chronicle: DecisionLog,
        reporter: Reporter,
        may_be_late: bool,
    ) -> None:
        self.own = LocalReport(holdings.parameters, council.rank, council.world)
        self.late = DeviceRound(council, holdings.device)
        self.step = 0
        """As the workers agreed at their last meeting."""

        self.leaving = self.over = False
        self._council, self._holdings, self._deeds = council, holdings, deeds
        self._assessor, self._chronicle, self._reporter = assessor, chronicle, reporter
        self._may_be_late, self._meetings = may_be_late, 0

    @property
    def decisions(self) -> list[DecisionRecord]:
        return list(self._chronicle.decisions)

    def meet(self, nth: int) -> None:
        """:param nth: Which synchronised pass of its step this is."""
        self._meetings += 1
        if self.late.begun:
            self._meet_late(nth)
            return
        word = self.own.word(self._word())
        verdict = self._council.meet(word, lambda words: self._assessor.consider(words, nth))
        self.step = verdict.step
        self._heed(verdict)
        if verdict.late:
            self.late.begin(verdict.norm_limit)

    def _meet_late(self, nth: int) -> None:
        self.step = self._reporter.step_now()
        word, device = self._word(), self._holdings.device
        verdict = self.late.meet(
            lambda numbers_N: self.own.fill_in(word, numbers_N, device), nth, self._assessor.consider
        )
        for buffer, before in self._deeds.buffers.remembered:
            self.late.leave_out(before, buffer)
        if verdict is not None:
            self._heed(verdict)
            if not verdict.late:
                self.late.end()

    def _word(self) -> RankReport:
        """Without what only the device knows."""
        can_wait = self._meetings > KNOWN_AFTER and supports(self._holdings.optimizers)
        return RankReport(
            step=self._reporter.step_now(),
            loss=None,
            finite=None,
            share_square=None,
            scaled=False,
            leaving=self.leaving,
            chain=self._chronicle.chain,
            may_be_late=self._may_be_late and can_wait,
            held=() if self._deeds.shelf is None else self._deeds.shelf.held(),
        )

    def _heed(self, verdict: RoundResult) -> None:
        if verdict.ends:
            self.over = True
            self._reporter.ended(verdict.ends, self._assessor.apart)
            return
        decision = Decision.from_json(verdict.decision.decode()) if verdict.decision else None
        shelf = self._deeds.shelf
        if shelf is not None and verdict.quiet:
            shelf.quiet(verdict.step)
        elif shelf is not None:
            shelf.trouble(verdict.step if decision is None else decision.begun)
        if decision is not None:
            self._act(decision, verdict.decision)
        # Not before: a checkpoint that is too old by now may be the one to go back to.
        if shelf is not None and verdict.agreed in shelf.held():
            shelf.agreed(verdict.agreed)
        self._reporter.tell_of_broken_rows(self._assessor.broken_rows)

    def _act(self, decision: Decision, sent: bytes) -> None:
        record = self._chronicle.enter(decision, sent)
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
            self._chronicle.strike(record)
            return
        self._reporter.decided(self._chronicle.add_outcome(record, outcome, self._deeds.overwritten))
        if not decision.counted:
            self._assessor.charge(decision)

    def _carry_out(self, decision: Decision) -> str:
        # On the device the step was left out at once.
        return self._deeds.carry_out(decision, but=("skip",) if self.late.begun else ())
