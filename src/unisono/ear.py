"""Follows one model's steps on the training thread: which backward belongs to which step, and when a step ends.

Everything here must be cheap and may never raise: errors are counted, said once, and training goes on.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor
from torch.optim import Optimizer

from unisono.clock import Mark, clock_for
from unisono.gradient_hooks import GradientHooks
from unisono.integrations.wrapper import Wrapper
from unisono.losses import StepLoss
from unisono.parcel import Parcel
from unisono.plan import Plan
from unisono.probe import Hearing, Probe

P = ParamSpec("P")


def guarded(method: Callable[Concatenate[Ear, P], None]) -> Callable[Concatenate[Ear, P], None]:
    """Times a method of the ear and keeps its errors from training. Forked children are deaf."""

    @functools.wraps(method)
    def call(self: Ear, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.closed or os.getpid() != self.pid:
            return
        began = time.perf_counter()
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.failed(error)
        finally:
            self.spent += time.perf_counter() - began

    return call  # type: ignore[return-value]


class Ear:
    def __init__(
        self,
        wrapper: Wrapper,
        probe: Probe,
        plan: Plan,
        submit: Callable[[Parcel], None],
        complain: Callable[[str], None],
        first_step: int = 0,
    ) -> None:
        self.step = first_step
        self.closed = False
        self.pid = os.getpid()
        self.spent = 0.0
        self.errors = 0
        self._wrapper, self._probe, self._plan = wrapper, probe, plan
        self._submit, self._complain = submit, complain
        self._clock = clock_for(probe.device)
        ranks = wrapper.ranks()
        own = ranks.index(torch.distributed.get_rank()) if len(ranks) > 1 else 0
        self._share = probe.share_of(own, len(ranks))
        self._mine = {id(parameter) for parameter in probe.parameters}
        self._hooks = GradientHooks(probe.parameters, self._gradient_arrived)
        self._in_optimizer = False
        self._touched = 0
        self._began: Mark = self._clock.mark()
        self._charged = 0.0
        self._loss = StepLoss(complain)
        self._reset()

    def _reset(self) -> None:
        self._backwards = 0
        self._syncs = 0
        self._foreign_step = False
        self._due = False
        self._window = 0
        self._scale: float | Tensor | None = None
        self._clip_norm: float | Tensor | None = None
        self._finite_sum: float | Tensor | None = None
        self._reduced: float | Tensor | None = None
        self._backward_mark: Mark | None = None
        self._hearing: Hearing | None = None
        self._listening = False
        self._syncing = False
        self._loss.reset()

    @guarded
    def record_loss(self, loss: Any) -> None:
        self._loss.record(loss)

    @guarded
    def backward_begins(self, roots: Any, grad_tensors: Any) -> None:
        if self._backwards and self._probe.parameters[self._touched].grad is None:
            self._gradients_were_dropped()
        self._hooks.fired.clear()
        self._loss.propose(roots, grad_tensors)
        self._syncing = self._wrapper.will_sync()
        if self._backwards == 0:
            self._due, self._window = self._plan.hears(self.step), self._plan.window(self.step)
        # Without `no_sync` only the first backward of a step sees this worker's own gradient: later ones add to the
        # mean that all-reduce left behind.
        if (
            self._due
            and self._syncing
            and self._syncs == 0
            and self._hearing is None
            and self._probe.open(self._window)
        ):
            self._listening = True
            self._hooks.listen_to_all()

    def _gradients_were_dropped(self) -> None:
        """The last backward was followed by `zero_grad` without a step of our optimizer."""
        if self._in_optimizer:
            self._loss.reset()
        elif self._foreign_step:
            self._give_up_hearing()
            self._reset()
        else:
            self._end_step(skipped=True)

    @guarded
    def _gradient_arrived(self, index: int, parameter: Tensor) -> None:
        complete = self._hooks.count(index)
        if self._syncing and index in self._hooks.sentries:
            self._backward_mark = self._clock.mark()
            if index == self._hooks.witness and parameter.grad is not None:
                self._finite_sum = _sum_of(parameter.grad)
        if self._listening and complete:
            self._probe.hear(index)

    @guarded
    def backward_ended(self) -> None:
        self._hooks.rest()
        if not self._hooks.fired:
            self._probe.abandon()
            self._listening = False
            return
        self._touched = next(iter(self._hooks.fired))
        self._backwards += 1
        self._syncs += self._syncing
        self._scale = self._loss.accept()
        if self._listening:
            self._listening = False
            self._finish_hearing()

    def _finish_hearing(self) -> None:
        if not self._hooks.as_usual():
            self._probe.abandon()
            return
        self._hearing = self._probe.close()
        if self._wrapper.plain_mean():
            self._reduced = _plain(self._probe.squared_norm_of(self._share))

    @guarded
    def loss_scaled(self, scaler: Any) -> None:
        current = getattr(scaler, "_get_scale_async", scaler.get_scale)()
        self._loss.scaled_by(_plain(current) if isinstance(current, Tensor) else current)

    @guarded
    def clipped(self, parameters: list[Tensor], norm: Tensor) -> None:
        if any(id(parameter) in self._mine for parameter in parameters):
            self._clip_norm = _plain(norm)

    @guarded
    def optimizer_begins(self, optimizer: Optimizer) -> None:
        self._in_optimizer = self._in_optimizer or self._owns(optimizer)

    @guarded
    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        if not self._owns(optimizer):
            self._foreign_step = self._backwards > 0
            return
        self._in_optimizer = False
        if self._backwards:
            self._end_step(skipped=False)

    @guarded
    def scaler_stepped(self, optimizer: Optimizer) -> None:
        if self._backwards and self._owns(optimizer):
            self._end_step(skipped=True)

    @guarded
    def step_ended(self) -> None:
        if self._backwards:
            self._end_step(skipped=False)

    def _owns(self, optimizer: Optimizer) -> bool:
        return any(id(parameter) in self._mine for group in optimizer.param_groups for parameter in group["params"])

    def _end_step(self, skipped: bool) -> None:
        ended = self._clock.mark()
        cost, self._charged = self.spent - self._charged, self.spent
        parcel = Parcel(
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
            witness=self._finite_sum,
            reduced_share=self._reduced if self._syncs == 1 else None,
            hearing=self._hearing,
        )
        self.step += 1
        self._began = ended
        self._reset()
        self._submit(parcel.send())

    def failed(self, error: Exception) -> None:
        self.errors += 1
        self._hooks.rest()
        self._give_up_hearing()
        self._complain(f"listening failed ({type(error).__name__}: {error}); training is not affected")

    def close(self) -> None:
        self._hooks.remove()
        self.closed = True

    def _give_up_hearing(self) -> None:
        self._listening = False
        self._probe.abandon()
        if self._hearing is not None:
            self._probe.give_back(self._hearing.accumulator_G2K)
            self._hearing = None


def _sum_of(gradient: Tensor) -> float | Tensor:
    values = gradient._values() if gradient.is_sparse else gradient
    return _plain((torch.view_as_real(values) if values.is_complex() else values).float().sum())


def _plain(number: Tensor) -> float | Tensor:
    """A float where reading it is free; a tensor where it would make the host wait."""
    return number.detach().item() if number.device.type == "cpu" else number.detach().clone()
