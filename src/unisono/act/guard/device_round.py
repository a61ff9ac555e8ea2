"""Rounds on a GPU that nobody waits for: reports travel in the stream of the gradients and are read a step later.

Whether the step counts is worked out on the device, by every worker from the same numbers with the same limit: a
comparison does not round. The optimizer is told through `found_inf`, as a GradScaler tells it. What else the first
worker decides about a step reaches the workers two steps later.

W = workers, N = numbers of a report and of a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from unisono.exchange.collectives import GuardCollectives
from unisono.exchange.guard_messages import (
    FINITE,
    LENGTH,
    LOSS,
    LOSS_KNOWN,
    SCALED,
    SQUARE,
    RankReport,
    RoundResult,
    rank_report,
)

Consider = Callable[[Sequence[RankReport], int, bool], RoundResult]


def supports(optimizers: Sequence[Any]) -> bool:
    """Whether they leave out a step, counters included, when a tensor on the device says so."""
    return bool(optimizers) and all(getattr(one, "_step_supports_amp_scaling", False) for one in optimizers)


def is_possible(collectives: GuardCollectives, device: torch.device) -> bool:
    """Gloo's collectives make the host wait in any case."""
    return device.type == "cuda" and (collectives.group is None or collectives.by_nccl)


class DeviceRound:
    def __init__(self, collectives: GuardCollectives, device: torch.device) -> None:
        self.begun = False
        self._collectives, self._device = collectives, device
        self._sent: tuple[Tensor, torch.cuda.Event | None] | None = None
        self._verdict = RoundResult(0, quiet=True)
        """The first worker's newest, on its way."""

        self._limit = math.inf
        self._nth = 0
        self._found: Tensor | None = None
        self._told: list[Any] = []

    def begin(self, norm_limit: float) -> None:
        self.begun, self._limit = True, norm_limit
        self._verdict = RoundResult(0, quiet=True, late=True, norm_limit=norm_limit)

    def end(self) -> None:
        """From the next round on all wait for each other again."""
        self.begun, self._sent = False, None

    def left_out(self) -> bool:
        """For an optimizer that cannot ask the device itself. Waits."""
        return self._found is not None and bool(self._found.item())

    def hold(self, report: Callable[[Tensor], Tensor], nth: int, consider: Consider) -> RoundResult | None:
        """
        :param report: Fills in what lies on the device.
        :param nth: Which synchronised pass of its step this is.
        :param consider: Asked on the first worker about the pass before: reports, its number, whether it was left out.
        :return: What was decided about the step two before this one.
        """
        heard = self._collect(consider)
        host_N = torch.tensor([0.0] * LENGTH + self._verdict.numbers(), dtype=torch.float64)
        sent_N = report(host_N)
        rows_WN = self._collectives.gather_on_device(sent_N)
        found = _should_not_count(rows_WN, self._limit)
        self._found = found if self._found is None else torch.maximum(self._found, found)
        self._send_home(rows_WN, found)
        self._nth = nth
        return heard

    def _collect(self, consider: Consider) -> RoundResult | None:
        if self._sent is None:
            return None
        (host, arrived), decision = self._sent, self._verdict.decision
        if arrived is not None:
            # The step before is over on the device, or nearly so: the host runs ahead by one step at most.
            arrived.synchronize()
        *numbers, left_out = host.tolist()
        size = len(numbers) // self._collectives.world
        rows = [numbers[place : place + size] for place in range(0, len(numbers), size)]
        result = self._collectives.with_decision(rows[0][LENGTH:], decision)
        if self._collectives.is_first:
            self._verdict = consider([rank_report(row[:LENGTH]) for row in rows], self._nth, bool(left_out))
        self._limit = result.norm_limit
        return result

    def _send_home(self, rows_WN: Tensor, found: Tensor) -> None:
        told = torch.cat([rows_WN.flatten(), found.double().reshape(1)])
        if not told.is_cuda:
            self._sent = told, None
            return
        host = torch.empty(told.shape, dtype=told.dtype, pin_memory=True)
        host.copy_(told, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self._device))
        self._sent = host, arrived

    def leave_out(self, before: Tensor, tensor: Tensor) -> None:
        """Puts a tensor back to what it was, if the step does not count."""
        if self._found is not None:
            tensor.copy_(torch.where(self._found.bool(), before, tensor))

    def impose_on(self, optimizer: Any) -> None:
        if self._found is None:
            return
        scalers = getattr(optimizer, "found_inf", None)
        if scalers is None:
            self._told.append(optimizer)
        optimizer.found_inf = self._found if scalers is None else torch.maximum(scalers, self._found)

    def withdraw_from(self, optimizer: Any) -> None:
        """What a scaler has set it takes away itself."""
        if any(optimizer is one for one in self._told):
            del optimizer.found_inf
            self._told = [one for one in self._told if one is not optimizer]

    def step_over(self) -> None:
        self._found = None


def _should_not_count(rows_WN: Tensor, limit: float) -> Tensor:
    unknown_W = rows_WN[:, LOSS_KNOWN] == 0
    finite = (rows_WN[:, FINITE] != 0).all() & (rows_WN[:, LOSS].isfinite() | unknown_W).all()
    square = rows_WN[:, SQUARE].sum()
    # A loss scaler skips what is not finite by itself.
    scaled = (rows_WN[:, SCALED] != 0).any()
    bad = ~(finite & square.isfinite()) & ~scaled
    return (bad | (square > limit * limit)).float()
