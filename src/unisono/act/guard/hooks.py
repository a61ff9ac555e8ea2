"""Follows one model's training on this worker: when to meet the others, and when to do what was decided.

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
from unisono.act.guard.step_end import StepEnd
from unisono.listen import torch_patches as taps
from unisono.listen.models.wrapper import Wrapper
from unisono.records import DecisionRecord


class GuardHooks(taps.Listener):
    """Lives as long as its model: a worker that stopped to come to the meetings would leave the others waiting."""

    def __init__(
        self,
        wrapper: Wrapper,
        holdings: GuardedState,
        deeds: Executor,
        proceedings: DecisionRound,
        restoring: GuardRestart | None,
        steering: Any,
    ) -> None:
        self._wrapper, self._holdings, self._deeds = wrapper, holdings, deeds
        self._proceedings, self._restoring, self._steering = proceedings, restoring, steering
        self.own, self._late = proceedings.own, proceedings.late
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
        taps.connect(self)
        weakref.finalize(self._holdings.model, self.release).atexit = False

    @property
    def skipped(self) -> bool:
        return self._deeds.skipped

    @property
    def decisions(self) -> list[DecisionRecord]:
        return self._proceedings.decisions

    def restore(self) -> int | None:
        if self._restoring is None:
            raise ValueError(
                "Only checkpoints on disk outlast a restart. Found a guard without them. Write: "
                'unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(where="disk"))'
            )
        return self._restoring.restore(self._holdings)

    @property
    def leaving(self) -> bool:
        return self._proceedings.leaving

    def leave(self) -> None:
        """This worker stops guarding as soon as all others know it."""
        self._proceedings.leaving = True

    def forward_begins(self, model: Any, inputs: Any) -> None:
        if not self._wrapper.is_model(model) or not torch.is_grad_enabled():
            return
        if self._deeds.going_back:
            # No end of the step was seen before the next one.
            self._deeds.step_over(self._proceedings.step, said=False)
        if model.training and not self._remembers:
            self._remembers = True
            self._deeds.buffers.remember(self._holdings.module)

    def forward_ended(self, model: Any) -> None:
        if self._wrapper.is_model(model):
            self._wrapper.forward_passed()

    def backward_begins(self, roots: Any, grad_tensors: Any) -> None:
        self._in_backward = True
        self._deeds.skipping.pass_begins(afresh=False)
        self._syncing = self._wrapper.will_sync()
        self.own.pass_begins(roots, grad_tensors)

    def backward_ended(self, failed: bool) -> None:
        self._in_backward = False
        if failed or not self.own.pass_was_ours() or os.getpid() != self._pid:
            return
        if self._ended:
            self._ended, self._passes, self._deeds.skipped = False, 0, False
            self._late.step_over()
            self._step_end.pass_begins()
        if self._syncing and self._wrapper.has_reduced():
            self._wrapper.reduced()
            self._meet()
        self._deeds.skipping.backward_ended()

    def _meet(self) -> None:
        self._refuse_what_cannot_be()
        nth, self._passes = self._passes, self._passes + 1
        self._passes_inside += self._deeds.skipping.stepping
        self.own.counts = self._steering is None or not self._steering.rejected
        self._proceedings.meet(nth)
        if self._proceedings.over:
            self.release()

    def _refuse_what_cannot_be(self) -> None:
        if self._wrapper.joins():
            raise RuntimeError(
                "The guard needs all workers at every step. Found `join`, which lets some of them run out of data. "
                "Give every worker the same number of batches, or attach without `guard`."
            )
        if self._passes_inside and self._deeds.skipping.stepping:
            raise RuntimeError(
                "The guard needs an optimizer that evaluates the loss once a step. Found a second synchronised "
                "backward pass inside its `step`. Use another optimizer, or attach without `guard`."
            )
        if self._holdings.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "The guard cannot decide inside a CUDA graph. Found one being captured. Capture the step without "
                "`backward`, or attach without `guard`."
            )

    def gradients_zeroed(self, parameters: list[Tensor]) -> None:
        if not self._holdings.owns(parameters):
            return
        self._deeds.skipping.let_speak(parameters)
        if not self._ended:
            self.own.gradients_dropped()
            self._remembers = self._remembers and not self._passes
        self._ended = True

    def loss_scaled(self, scaled: Any, scaler: Any, losses: Any) -> None:
        self._holdings.meet_scaler(scaler)
        self.own.loss_scaled(scaled, scaler, losses)

    def optimizer_begins(self, parameters: list[Tensor], optimizer: Any) -> None:
        if not self._holdings.owns(parameters):
            return
        if self._in_backward:
            raise RuntimeError(
                "The guard decides when backward has ended. Found an optimizer that steps before, in a gradient hook. "
                "Step after backward, or attach without `guard`."
            )
        if not self._deeds.skipping.stepping:
            self._passes_inside = 0
            if self._holdings.meet(optimizer):
                self._deeds.optimizers_changed()
        if self._late.begun and not supports([optimizer]) and self._late.left_out():
            self._deeds.skipping.silence(parameters)
        # Also what an optimizer holds besides the model, such as a loss with parameters: the step is one.
        self._deeds.skipping.silence_with(parameters)
        self._deeds.skipping.optimizer_begins(parameters, optimizer)
        if supports([optimizer]):
            self._late.impose_on(optimizer)

    def optimizer_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._holdings.owns(parameters):
            self._deeds.skipping.optimizer_stepped(optimizer)
            self._late.withdraw_from(optimizer)
            if not self._deeds.skipping.stepping:
                self._optimizer_is_done(optimizer)

    def scaler_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._holdings.owns(parameters):
            self._optimizer_is_done(optimizer)

    def _optimizer_is_done(self, optimizer: Any) -> None:
        self._step_is_over()
        if self._step_end.optimizer_stepped(optimizer):
            self._deeds.step_over(self._proceedings.step, said=False)

    def step_ended(self) -> None:
        """The script says so."""
        if self._passes and not self._holdings.optimizers:
            raise RuntimeError(
                "The guard skips a step by keeping gradients from a torch optimizer. Found a step without one. Use "
                "one, or attach without `guard`."
            )
        self._step_is_over()
        if self._step_end.told():
            self._deeds.step_over(self._proceedings.step, said=True)

    def _step_is_over(self) -> None:
        self._ended, self._remembers = True, False
        self.own.step_over()

    def release(self) -> None:
        """The model is gone, or nobody guards any longer."""
        self.released = True
        taps.disconnect(self)
        self.own.close()
        self._holdings.release()
        self._deeds.release()
