"""Follows one model's steps on the training thread: which backward belongs to which step, and when a step ends.

Everything here must be cheap and may never raise: errors are counted, said once, and training goes on.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from unisono.common.errors import in_one_line
from unisono.listen.clock import Mark, clock_for
from unisono.listen.device_scalars import plain, sum_of
from unisono.listen.evidence.collector import EvidenceCollector
from unisono.listen.grad_hooks import GradientHooks
from unisono.listen.gradient_buffers import GradientReadout
from unisono.listen.gradient_reader import GradientReader
from unisono.listen.handover import Handover
from unisono.listen.listening_plan import ListeningPlan
from unisono.listen.messages import Steered
from unisono.listen.models.wrapper import Wrapper
from unisono.listen.never_raise import never_raise, report
from unisono.listen.step_loss import StepLoss
from unisono.listen.torch_patches import Listener


class Skips(Protocol):
    """Something that may keep a step from the optimizer."""

    @property
    def skipped(self) -> bool: ...


class Steers(Skips, Protocol):
    def take(self) -> Steered | None:
        """What was decided since it was last asked."""


class StepTracker(Listener):
    def __init__(
        self,
        wrapper: Wrapper,
        reader: GradientReader,
        evidence: EvidenceCollector,
        share: list[int] | None,
        plan: ListeningPlan,
        submit: Callable[[Handover], None],
        complain: Callable[[str], None],
        first_step: int = 0,
        steering: Steers | None = None,
    ) -> None:
        self.step = first_step
        self.closed, self.pid, self.spent = False, os.getpid(), 0.0
        self.guarded_by: Skips | None = None
        self.backward_since: float | None = None
        """When the backward pass began that is under way."""

        self.backward_error = ""
        """What the last backward pass has failed with."""

        self._wrapper, self._reader, self._evidence, self._plan = wrapper, reader, evidence, plan
        self._submit, self._complain, self._steering, self._share = submit, complain, steering, share
        self._clock = clock_for(reader.device)
        self._mine = {id(parameter) for parameter in reader.parameters}
        self._hooks = GradientHooks(reader.parameters, self._sentry_arrived, self._gradient_arrived)
        self._touched, self._charged = 0, 0.0
        self._others: WeakSet[Any] = WeakSet()
        """Optimizers that do not train this model."""

        self._began: Mark = self._clock.mark()
        self._stepping, self._loss = NestedOptimizers(), StepLoss(complain)
        self._reset()
        evidence.step_is(first_step)

    def _reset(self) -> None:
        self._backwards = self._strays = self._syncs = self._window = 0
        self._zeroed = self._foreign_step = self._due = self._listening = self._syncing = False
        self._scale: float | Tensor | None = None
        self._clip_norm: float | Tensor | None = None
        self._finite_sum: float | Tensor | None = None
        self._reduced: float | Tensor | None = None
        self._backward_mark: Mark | None = None
        self._readout: GradientReadout | None = None
        self._loss.reset()

    def capturing(self) -> bool:
        return self._reader.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    @never_raise
    def record_loss(self, loss: Any) -> None:
        self._loss.record(loss)

    @never_raise
    def backward_begins(self, roots: Any, grad_tensors: Any) -> None:
        self.backward_since, self.backward_error = time.monotonic(), ""
        if self._backwards and (self._zeroed or self._reader.parameters[self._touched].grad is None):
            self._gradients_were_dropped()
        self._zeroed = False
        self._hooks.fired.clear()
        self._loss.propose(roots, grad_tensors)
        self._syncing = self._wrapper.will_sync()
        if self._backwards == 0:
            self._due, self._window = self._plan.hears(self.step), self._plan.window(self.step)
        self._listening = self._may_listen() and self._reader.open(self._window, self._wrapper.lifetime_of_gradients())
        if self._listening or self._hooks.everywhere:
            self._hooks.listen_to_all()

    def _may_listen(self) -> bool:
        # Without `no_sync` only the first backward of a step sees this worker's own gradient: later ones add to the
        # mean that all-reduce left behind.
        return self._due and self._syncing and self._syncs == 0 and self._readout is None

    def _gradients_were_dropped(self) -> None:
        """The last backward was followed by `zero_grad` without a step of our optimizer."""
        if self._stepping or self._foreign_step or self._evidence.past_the_wrapper():
            # A closure evaluated again, another model that trains through this one, or a look at some gradients.
            self._give_up_readout()
            self._evidence.forget(self._syncs)
            self._reset()
        else:
            self._end_step(skipped=True)

    @never_raise
    def _sentry_arrived(self, index: int, parameter: Tensor) -> None:
        complete = self._hooks.count(index)
        if self._syncing:
            self._backward_mark = self._clock.mark()
            if index == self._hooks.finite_check and parameter.grad is not None:
                self._finite_sum = sum_of(parameter.grad)
        if self._listening and complete:
            self._reader.hear(index)

    def _gradient_arrived(self, index: int, parameter: Tensor) -> None:
        """As `never_raise`, without its checks: nothing is listened to but in a backward pass that has passed them."""
        began = time.perf_counter()
        try:
            if self._hooks.count(index) and self._listening:
                self._reader.hear(index)
        except Exception as error:
            report(self, error)
        self.spent += time.perf_counter() - began

    @never_raise
    def backward_ended(self, failed: bool) -> None:
        self.backward_since = None
        error = sys.exc_info()[1]
        if failed and error is not None:
            self.backward_error = in_one_line(error)
        # Setting hundreds of hooks costs more than leaving them for a step.
        if not (self._hooks.everywhere or self._plan.hears(self.step + 1)):
            self._hooks.rest()
        listened, self._listening = self._listening, False
        if failed or not self._hooks.fired:
            self._strays += not failed
            self._reader.abandon()
            return
        self._touched = next(iter(self._hooks.fired))
        self._backwards += 1
        self._syncs += self._syncing
        self._loss.accept()
        self._evidence.backward_counted(self._syncing)
        if self._loss.scale is not None:
            self._scale = self._loss.scale
        if listened:
            self._finish_readout()

    def _finish_readout(self) -> None:
        if not self._hooks.as_usual():
            self._reader.abandon()
            return
        self._readout, late = self._reader.close()
        self.spent += late
        if self._share is not None and self._wrapper.plain_mean():
            self._reduced = self._reader.squared_norm_of(self._share)

    @never_raise
    def gradients_zeroed(self, parameters: list[Tensor]) -> None:
        self._zeroed = self._zeroed or self._owns(parameters)

    @never_raise
    def loss_scaled(self, scaled: Any, scaler: Any, losses: Any) -> None:
        current = getattr(scaler, "_get_scale_async", scaler.get_scale)()
        self._loss.scaled_by(scaled, plain(current) if isinstance(current, Tensor) else current, losses)

    @never_raise
    def clipped(self, parameters: list[Tensor], norm: Tensor) -> None:
        if self._owns(parameters):
            self._clip_norm = plain(norm)

    @never_raise
    def optimizer_begins(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._owns(parameters):
            self._stepping.enter(optimizer)

    @never_raise
    def optimizer_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if not self._owns(parameters):
            self._foreign_step = self._backwards > 0
            if self._strays and self._trains_replaced(parameters, optimizer):
                self._end_step(skipped=False)
            return
        if self._stepping.leave(optimizer) and (self._backwards or self._missed_a_backward()):
            skippers = (self._steering, self.guarded_by)
            self._end_step(skipped=any(skipper is not None and skipper.skipped for skipper in skippers))

    def _trains_replaced(self, parameters: list[Tensor], optimizer: Any) -> bool:
        """Parameters have taken the place of those that were wrapped; nobody hears or averages their gradients."""
        if optimizer in self._others:
            return False
        replaced = self._wrapper.holds(parameters)
        if not replaced:
            self._others.add(optimizer)
        return replaced

    def _missed_a_backward(self) -> bool:
        """Our optimizer steps on gradients that no sentry saw arrive: from now on every parameter is a sentry."""
        missed = self._strays > 0 and any(parameter.grad is not None for parameter in self._reader.parameters)
        self._hooks.everywhere |= missed
        return missed

    @never_raise
    def scaler_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._backwards and self._owns(parameters):
            self._end_step(skipped=True)

    @never_raise
    def step_ended(self) -> None:
        if self._backwards:
            self._end_step(skipped=False)

    def _owns(self, parameters: list[Tensor]) -> bool:
        return any(id(parameter) in self._mine for parameter in parameters)

    def _end_step(self, skipped: bool) -> None:
        ended = self._clock.mark()
        raw_evidence = self._evidence.raw_evidence(self._backwards, self._syncs)
        spent = self.spent + self._evidence.spent
        cost, self._charged = spent - self._charged, spent
        handover = Handover(
            step=self.step,
            time=time.time(),
            due=self._due,
            window=self._window,
            skipped=skipped,
            cost=cost,
            clock=self._clock,
            began=self._began,
            backward=self._backward_mark,
            ended=ended,
            loss=self._loss.value(),
            scale=self._scale,
            clip_norm=self._clip_norm,
            finite_sum=self._finite_sum,
            reduced_share=self._reduced if self._syncs == 1 else None,
            readout=self._readout,
            raw_evidence=raw_evidence,
            steered=None if self._steering is None else self._steering.take(),
        )
        self.step += 1
        self._evidence.step_is(self.step)
        self._began = ended
        self._reset()
        self._submit(handover.send(self._reader.device))

    def failed(self, error: Exception) -> None:
        self._complain(f"listening failed ({type(error).__name__}: {error}); training is not affected")
        self._hooks.rest()
        self._give_up_readout()

    def close(self) -> None:
        self.closed = True
        self._hooks.remove()
        self._give_up_readout()
        self._loss.reset()

    def _give_up_readout(self) -> None:
        self._listening = False
        self._reader.abandon()
        if self._readout is not None:
            self._readout.discard()
            self._readout = None


class NestedOptimizers:
    def __init__(self) -> None:
        self._stepping: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._stepping)

    def enter(self, optimizer: object) -> None:
        """An error may have kept it from ending last time."""
        self._close(optimizer)
        self._stepping.append(id(optimizer))

    def leave(self, optimizer: object) -> bool:
        """Whether this was the outermost one."""
        self._close(optimizer)
        return not self._stepping

    def _close(self, optimizer: object) -> None:
        """Also those inside it."""
        if id(optimizer) in self._stepping:
            del self._stepping[self._stepping.index(id(optimizer)) :]
