"""Follows one model's training on this worker: when to decide with the others, and when to do what was decided.

Errors of the guard reach training: it was asked to act, and one worker that does not would part from the others.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch
from torch import Tensor

from unisono.act.guard.decision_round import DecisionRound
from unisono.act.guard.device_round import supports
from unisono.act.guard.executor import Executor
from unisono.act.guard.guarded_state import GuardedState
from unisono.act.guard.restart import GuardRestart
from unisono.listen import torch_patches
from unisono.listen.models.wrapper import Wrapper
from unisono.records import DecisionRecord


class GuardHooks(torch_patches.Listener):
    """Lives as long as its model: a worker that no longer took part in the rounds would leave the others waiting."""

    def __init__(
        self,
        wrapper: Wrapper,
        guarded_state: GuardedState,
        executor: Executor,
        decision_round: DecisionRound,
        restart: GuardRestart | None,
        steering: Any,
    ) -> None:
        self._wrapper, self._guarded_state, self._executor = wrapper, guarded_state, executor
        self._decision_round, self._restart, self._steering = decision_round, restart, steering
        self.own, self._device_round = decision_round.own, decision_round.device_round
        self.released = False
        self._step_end = StepEnd()
        self._pid = os.getpid()
        self._in_backward = self._syncing = self._remembers = False
        self._ended = True
        """No pass of the next step has been seen yet."""

        self._passes = self._passes_inside = 0
        """Synchronised ones of this step, and inside a call of an optimizer's `step`."""

    def begin(self) -> None:
        """After those who only listen: they look at gradients before one is taken away."""
        self._wrapper.reduced()
        torch_patches.connect(self)
        weakref.finalize(self._guarded_state.model, self.release).atexit = False

    @property
    def skipped(self) -> bool:
        return self._executor.skipped

    @property
    def decisions(self) -> list[DecisionRecord]:
        return self._decision_round.decisions

    def restore(self) -> int | None:
        if self._restart is None:
            raise ValueError(
                "Only checkpoints on disk outlast a restart. Found a guard without them. Write: "
                'unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(where="disk"))'
            )
        return self._restart.restore(self._guarded_state)

    @property
    def leaving(self) -> bool:
        return self._decision_round.leaving

    def leave(self) -> None:
        """This worker stops guarding as soon as all others know it."""
        self._decision_round.leaving = True

    def forward_begins(self, model: Any, inputs: Any) -> None:
        if not self._wrapper.is_model(model) or not torch.is_grad_enabled():
            return
        if self._executor.going_back:
            # No end of the step was seen before the next one.
            self._executor.step_over(self._decision_round.step, said=False)
        if model.training and not self._remembers:
            self._remembers = True
            self._executor.buffers.remember(self._guarded_state.module)

    def forward_ended(self, model: Any) -> None:
        if self._wrapper.is_model(model):
            self._wrapper.forward_passed()

    def backward_begins(self, roots: Any, grad_tensors: Any) -> None:
        self._in_backward = True
        self._executor.skipping.pass_begins(afresh=False)
        self._syncing = self._wrapper.will_sync()
        self.own.pass_begins(roots, grad_tensors)

    def backward_ended(self, failed: bool) -> None:
        self._in_backward = False
        if failed or not self.own.pass_was_ours() or os.getpid() != self._pid:
            return
        if self._ended:
            self._ended, self._passes, self._executor.skipped = False, 0, False
            self._device_round.step_over()
            self._step_end.pass_begins()
        if self._syncing and self._wrapper.has_reduced():
            self._wrapper.reduced()
            self._hold_round()
        self._executor.skipping.backward_ended()

    def _hold_round(self) -> None:
        self._refuse_what_cannot_be()
        nth, self._passes = self._passes, self._passes + 1
        self._passes_inside += self._executor.skipping.stepping
        self.own.counts = self._steering is None or not self._steering.rejected
        self._decision_round.hold(nth)
        if self._decision_round.over:
            self.release()

    def _refuse_what_cannot_be(self) -> None:
        if self._wrapper.joins():
            raise RuntimeError(
                "The guard needs all workers at every step. Found `join`, which lets some of them run out of data. "
                "Give every worker the same number of batches, or attach without `guard`."
            )
        if self._passes_inside and self._executor.skipping.stepping:
            raise RuntimeError(
                "The guard needs an optimizer that evaluates the loss once a step. Found a second synchronised "
                "backward pass inside its `step`. Use another optimizer, or attach without `guard`."
            )
        if self._guarded_state.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "The guard cannot decide inside a CUDA graph. Found one being captured. Capture the step without "
                "`backward`, or attach without `guard`."
            )

    def gradients_zeroed(self, parameters: list[Tensor]) -> None:
        if not self._guarded_state.owns(parameters):
            return
        self._executor.skipping.let_speak(parameters)
        if not self._ended:
            self.own.gradients_dropped()
            self._remembers = self._remembers and not self._passes
        self._ended = True

    def loss_scaled(self, scaled: Any, scaler: Any, losses: Any) -> None:
        self._guarded_state.add_scaler(scaler)
        self.own.loss_scaled(scaled, scaler, losses)

    def optimizer_begins(self, parameters: list[Tensor], optimizer: Any) -> None:
        if not self._guarded_state.owns(parameters):
            return
        if self._in_backward:
            raise RuntimeError(
                "The guard decides when backward has ended. Found an optimizer that steps before, in a gradient hook. "
                "Step after backward, or attach without `guard`."
            )
        if not self._executor.skipping.stepping:
            self._passes_inside = 0
            if self._guarded_state.add_optimizer(optimizer):
                self._executor.optimizers_changed()
        if self._device_round.begun and not supports([optimizer]) and self._device_round.left_out():
            self._executor.skipping.silence(parameters)
        # Also what an optimizer holds besides the model, such as a loss with parameters: the step is one.
        self._executor.skipping.silence_with(parameters)
        self._executor.skipping.optimizer_begins(parameters, optimizer)
        if supports([optimizer]):
            self._device_round.impose_on(optimizer)

    def optimizer_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._guarded_state.owns(parameters):
            self._executor.skipping.optimizer_stepped(optimizer)
            self._device_round.withdraw_from(optimizer)
            if not self._executor.skipping.stepping:
                self._optimizer_is_done(optimizer)

    def scaler_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._guarded_state.owns(parameters):
            self._optimizer_is_done(optimizer)

    def _optimizer_is_done(self, optimizer: Any) -> None:
        self._step_is_over()
        if self._step_end.optimizer_stepped(optimizer):
            self._executor.step_over(self._decision_round.step, said=False)

    def step_ended(self) -> None:
        """The script says so."""
        if self._passes and not self._guarded_state.optimizers:
            raise RuntimeError(
                "The guard skips a step by keeping gradients from a torch optimizer. Found a step without one. Use "
                "one, or attach without `guard`."
            )
        self._step_is_over()
        if self._step_end.told():
            self._executor.step_over(self._decision_round.step, said=True)

    def _step_is_over(self) -> None:
        self._ended, self._remembers = True, False
        self.own.step_over()

    def release(self) -> None:
        """The model is gone, or nobody guards any longer."""
        self.released = True
        torch_patches.disconnect(self)
        self.own.close()
        self._guarded_state.release()
        self._executor.release()


REMEMBERED = 100
"""Steps after which an optimizer that has not stepped is not waited for any more."""


class StepEnd:
    def __init__(self) -> None:
        self._steps = 0
        self._last: dict[int, int] = {}
        """Of each optimizer: the step in which it last stepped."""

        self._told = self._by_hand = False

    def pass_begins(self) -> None:
        """The first one of a step."""
        self._steps += 1
        self._last = {one: last for one, last in self._last.items() if self._steps - last <= REMEMBERED}
        self._told = False

    def optimizer_stepped(self, optimizer: object) -> bool:
        """Whether the step is over. Not known in the first one: more optimizers may follow."""
        self._last[id(optimizer)] = self._steps
        complete = self._steps > 1 and all(last == self._steps for last in self._last.values())
        over = complete and not self._told and not self._by_hand
        self._told = self._told or over
        return over

    def told(self) -> bool:
        """The script says that the step is over; from now on only that counts."""
        over = not self._told
        self._by_hand, self._told = True, True
        return over
