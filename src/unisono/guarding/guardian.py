"""Follows one model's training on this worker: when to meet the others, and when to do what was decided.

Errors of the guard reach training: it was asked to act, and one worker that does not would part from the others.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch
from torch import Tensor

from unisono import taps
from unisono.guarding.assessor import Assessor
from unisono.guarding.chronicle import Chronicle
from unisono.guarding.council import Council
from unisono.guarding.deeds import NOTHING, Deeds
from unisono.guarding.holdings import Holdings
from unisono.guarding.late_meeting import LateMeeting, supports
from unisono.guarding.own_word import OwnWord
from unisono.guarding.reporter import Reporter
from unisono.guarding.restoring import Restoring
from unisono.guarding.step_end import StepEnd
from unisono.guarding.word import Verdict, Word
from unisono.integrations.wrapper import Wrapper
from unisono.policy import Decision
from unisono.records import DecisionRecord


class Guardian(taps.Listener):
    """Lives as long as its model: a worker that stopped to come to the meetings would leave the others waiting."""

    def __init__(
        self,
        wrapper: Wrapper,
        council: Council,
        holdings: Holdings,
        deeds: Deeds,
        assessor: Assessor,
        chronicle: Chronicle,
        restoring: Restoring | None,
        reporter: Reporter,
        may_be_late: bool,
    ) -> None:
        """:param may_be_late: What is asked for leaves it to the device whether a step counts."""
        self.own = OwnWord(holdings.parameters, council.rank, council.world)
        self._wrapper, self._council, self._holdings, self._deeds = wrapper, council, holdings, deeds
        self._assessor, self._chronicle, self._restoring, self._reporter = assessor, chronicle, restoring, reporter
        self._late = LateMeeting(council, holdings.device)
        self._may_be_late = may_be_late
        self._step_end = StepEnd()
        self._step = 0
        """As the workers agreed at their last meeting."""

        self._pid = os.getpid()
        self._syncing = self._leaving = self._ended = False
        self._passes = 0
        self._forwards = self._forwards_met = 0
        """Forward passes of the wrapped model with gradients, unless it is compiled; and at the last meeting."""

    def begin(self) -> None:
        """After those who only listen: they look at gradients before one is taken away."""
        taps.connect(self)
        weakref.finalize(self._holdings.module, self.release).atexit = False

    @property
    def skipped(self) -> bool:
        return self._deeds.skipped

    @property
    def decisions(self) -> list[DecisionRecord]:
        return list(self._chronicle.decisions)

    def restore(self) -> int | None:
        if self._restoring is None:
            raise ValueError(
                "Only checkpoints on disk outlast a restart. Found a guard without them. Write: "
                'unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(where="disk"))'
            )
        return self._restoring.restore(self._holdings)

    def leave(self) -> None:
        """This worker stops guarding as soon as all others know it."""
        self._leaving = True

    def forward_begins(self, model: Any, inputs: Any) -> None:
        if not self._wrapper.is_model(model) or not torch.is_grad_enabled():
            return
        if self._deeds.going_back:
            # No end of the step was seen before the next one.
            self._deeds.step_over(self._step, said=False)
        if model.training and (self._ended or self._deeds.buffers.empty):
            self._deeds.buffers.remember(self._holdings.module)

    def forward_ended(self, model: Any) -> None:
        if self._wrapper.is_model(model):
            self._wrapper.forward_passed()
            self._forwards += torch.is_grad_enabled()

    def backward_begins(self, roots: Any, grad_tensors: Any) -> None:
        if self._ended:
            self._ended, self._passes, self._deeds.skipped = False, 0, False
            self._late.step_over()
            self._step_end.pass_begins()
        self._deeds.skipping.pass_begins(afresh=False)
        self._syncing = self._wrapper.will_sync()
        self.own.pass_begins(roots, grad_tensors)

    def backward_ended(self, failed: bool) -> None:
        if failed or not self.own.pass_was_ours() or os.getpid() != self._pid:
            return
        if self._syncing and (self._forwards == 0 or self._forwards > self._forwards_met):
            self._forwards_met = self._forwards
            self._meet()
        self._deeds.skipping.backward_ended()

    def _meet(self) -> None:
        if self._wrapper.joins():
            raise RuntimeError(
                "The guard needs all workers at every step. Found `join`, which lets some of them run out of data. "
                "Give every worker the same number of batches, or attach without `guard`."
            )
        nth, self._passes = self._passes, self._passes + 1
        if self._late.begun:
            self._meet_late(nth)
            return
        verdict = self._council.meet(self.own.word(self._word()), lambda words: self._assessor.consider(words, nth))
        self._step = verdict.step
        self._heed(verdict)
        if verdict.late:
            self._late.begin(verdict.norm_limit)

    def _meet_late(self, nth: int) -> None:
        self._step = self._reporter.step_now()
        word, device = self._word(), self._holdings.device
        verdict = self._late.meet(
            lambda numbers_N: self.own.fill_in(word, numbers_N, device), nth, self._assessor.consider
        )
        for buffer, before in self._deeds.buffers.remembered:
            self._late.leave_out(before, buffer)
        if verdict is not None:
            self._heed(verdict)

    def _word(self) -> Word:
        """Without what only the device knows."""
        held = () if self._deeds.shelf is None else self._deeds.shelf.held()
        return Word(
            step=self._reporter.step_now(),
            loss=None,
            finite=None,
            share_square=None,
            scaled=False,
            leaving=self._leaving,
            chain=self._chronicle.chain,
            may_be_late=self._may_be_late and supports(self._holdings.optimizers),
            held=held,
        )

    def _heed(self, verdict: Verdict) -> None:
        if verdict.ends:
            self.release()
            self._reporter.ended(verdict.ends, self._assessor.apart)
            return
        shelf = self._deeds.shelf
        if shelf is not None:
            if verdict.quiet:
                shelf.quiet(verdict.step)
            else:
                shelf.trouble(verdict.step)
            if verdict.agreed is not None:
                shelf.agreed(verdict.agreed)
        if verdict.decision:
            self._act(verdict.decision)

    def _act(self, sent: bytes) -> None:
        decision = Decision.from_json(sent.decode())
        record = self._chronicle.enter(decision, sent)
        if decision.dry:
            self._reporter.decided(record)
        elif "resync" in decision.actions:
            self._synchronise(decision, record)
        else:
            # Before it is done: a worker that dies meanwhile leaves the reason behind.
            self._reporter.decided(record)
            # On the device the step was left out at once.
            self._deeds.carry_out(decision, but=("skip",) if self._late.begun else ())

    def _synchronise(self, decision: Decision, record: DecisionRecord) -> None:
        outcome = self._deeds.carry_out(decision)
        if outcome == NOTHING and not decision.counted:
            self._chronicle.strike(record)
            return
        self._reporter.decided(self._chronicle.add_outcome(record, outcome, self._deeds.overwritten))
        if not decision.counted:
            self._assessor.charge(decision)

    def gradients_zeroed(self, parameters: list[Tensor]) -> None:
        if self._holdings.owns(parameters):
            self._deeds.skipping.let_speak(parameters)
            if not self._ended:
                self.own.gradients_dropped()
            self._ended = True

    def loss_scaled(self, scaled: Any, scaler: Any, losses: Any) -> None:
        self._holdings.meet_scaler(scaler)
        self.own.loss_scaled(scaled, scaler, losses)

    def optimizer_begins(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._holdings.owns(parameters):
            self._holdings.meet(optimizer)
            self._deeds.skipping.optimizer_begins(parameters, optimizer)
            self._late.impose_on(optimizer)

    def optimizer_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._holdings.owns(parameters):
            self._deeds.skipping.optimizer_stepped(optimizer)
            self._late.withdraw_from(optimizer)
            self._optimizer_is_done(optimizer)

    def scaler_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._holdings.owns(parameters):
            self._optimizer_is_done(optimizer)

    def _optimizer_is_done(self, optimizer: Any) -> None:
        self._ended = True
        self.own.step_over()
        if self._step_end.optimizer_stepped(optimizer):
            self._deeds.step_over(self._step, said=False)

    def step_ended(self) -> None:
        """The script says so."""
        self._ended = True
        self.own.step_over()
        if self._step_end.told():
            self._deeds.step_over(self._step, said=True)

    def release(self) -> None:
        """The model is gone, or nobody guards any longer."""
        taps.disconnect(self)
        self.own.close()
        self._holdings.release()
        if self._deeds.shelf is not None:
            self._deeds.shelf.close()
