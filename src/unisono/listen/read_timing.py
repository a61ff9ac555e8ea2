"""When gradients that were noted are read on a GPU: as late as possible, so that one launch reads many of them.

By default DDP copies gradients into buckets, and the mean back when the backward pass is over. Up to then a worker's
own gradients stay where they are, so all are read there, in a callback that is queued before DDP's.

With `gradient_as_bucket_view=True` they are replaced by views of the buckets. A gradient that came in memory of its
own, as after `zero_grad()`, can be held for a while; one that was added to a view is divided by the number of workers
as soon as our hook returns, so it is read at once. So are gradients that DDP reduces at times of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn

HELD_BYTES = 128 << 20
"""Of gradients that would be free already, if they had not to be read."""


class GradientLifetime(Enum):
    """What becomes of a worker's own gradients before the backward pass is over."""

    STAY = auto()
    REPLACED = auto()
    UNCERTAIN = auto()


class ReadTiming:
    """
    :param read: Reads all that was noted.
    """

    def __init__(self, read: Callable[[], None]) -> None:
        self._read = read
        self._at_once = self._missed = False
        self._task: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._error: Exception | None = None
        self._spent = 0.0
        self._held = 0
        self._gone = False
        self._task = None
        self._last: tuple[nn.Parameter, Tensor] | None = None

    def begin(self, lifetime: GradientLifetime, parameters: list[nn.Parameter]) -> None:
        """A backward pass begins."""
        self._reset()
        in_a_view = lifetime is GradientLifetime.REPLACED and any(
            parameter.grad is not None for parameter in parameters
        )
        self._at_once = self._missed or in_a_view or lifetime is GradientLifetime.UNCERTAIN

    def noted(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        self._come_back_at_the_end()
        if self._must_read(parameter, gradient):
            self._held = 0
            self._read()

    def end(self, pending: bool) -> float:
        """Seconds spent in callbacks. Raises what went wrong there, or if gradients are gone that were not read."""
        self.forget()
        if self._error is not None:
            raise self._error
        if pending:
            self._missed = True
            raise RuntimeError("gradients were gone before they were read; from now on each is read as it arrives")
        return self._spent

    def forget(self) -> None:
        """The pass is over, or nobody asks for its gradients any more."""
        self._last = None

    def _must_read(self, parameter: nn.Parameter, gradient: Tensor) -> bool:
        if self._at_once:
            return True
        # Replaced by DDP, or let go of by an optimizer that steps inside the backward pass.
        self._gone = self._gone or (self._last is not None and self._last[0].grad is not self._last[1])
        self._last = parameter, gradient
        if not self._gone:
            return False
        self._held += gradient.nbytes
        return self._held >= HELD_BYTES

    def _come_back_at_the_end(self) -> None:
        """Reentrant checkpointing runs a backward pass inside another, and DDP may put the mean in place there."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._at_the_end)

    def _at_the_end(self) -> None:
        began = time.perf_counter()
        try:
            self._read()
        except Exception as error:
            self._error = error
        self._spent += time.perf_counter() - began
