"""Rank 0's share of the listening thread: collects what the ranks say, measures, writes it down and plans ahead.

W = workers, G = layer groups, K = sketch length.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unisono.directions import Format
from unisono.exchange import TURN, UNASKED, Exchange
from unisono.mailbox import GREETING_PATIENCE
from unisono.metrics import Memory, measure
from unisono.plan import AHEAD, Announcement, Budget
from unisono.records import NoteRecord, StepRecord
from unisono.rollbook import Rollbook
from unisono.schedule import WINDOW
from unisono.sidechannel import Payload
from unisono.signals import RollCall

SHORTEST_RETRY, LONGEST_RETRY = 2.0, 60.0
FEWEST_STEPS_BETWEEN_INTERVALS = 8 * WINDOW


class Scribe:
    def __init__(
        self,
        ranks: list[int],
        attempt: int,
        layout: Format,
        write: Callable[[StepRecord | NoteRecord], None],
        met: Callable[[dict[int, dict[str, Any]]], None],
        plain_mean: Callable[[], bool],
    ) -> None:
        self._ranks, self._world = ranks, len(ranks)
        self.book = Rollbook(self._world)
        self.last_step = -1
        self._attempt, self._layout = attempt, layout
        self._write, self._met, self._plain_mean = write, met, plain_mean
        self._memory, self._budget = Memory(), Budget()
        self._started = time.monotonic()
        self._introduced = False
        self._degraded: list[int] = []
        self._looked, self._seen_sent, self._greet_again = 0.0, 0, 0.0
        self._interval_set_at = -FEWEST_STEPS_BETWEEN_INTERVALS
        self._processor = time.thread_time()
        self._retry_at, self._retry_after = 0.0, SHORTEST_RETRY

    def turn(self, exchange: Exchange) -> None:
        self._greet(exchange)
        if self._has_reason_to_look(exchange):
            self._collect(exchange)
        if self._introduced:
            for roll in self.book.complete(self._plain_mean()):
                self._consider(roll, exchange)
        self._reopen_directions(exchange)

    def awaits(self, step: int) -> None:
        self.book.await_directions(step)

    def directions_lost(self) -> None:
        self.book.lose_directions()

    def gathered(self, step: int, payload_W: list[Payload | None]) -> bool:
        same = {(payload.step, payload.window) for payload in payload_W if payload is not None}
        if len(same) != 1 or None in payload_W:
            return False
        self.book.add_directions(step, self._decode(payload_W))
        self._retry_after = SHORTEST_RETRY
        return True

    def farewell(self, exchange: Exchange, deadline: float) -> None:
        while not self._all_left(exchange) and time.monotonic() < deadline:
            self._greet(exchange)
            self._collect(exchange)
            exchange.exchange_directions()
            time.sleep(TURN / 4)
        self._introduce(exchange)
        for roll in self.book.complete(self._plain_mean(), everything=True):
            self._consider(roll, exchange)
        exchange.lost += self.book.late

    def _has_reason_to_look(self, exchange: Exchange) -> bool:
        """Each look at the store takes a tenth of a millisecond of processor time: not while nothing can be there."""
        now, sent = time.monotonic(), exchange.mailbox.sent
        if self.book.open or sent != self._seen_sent or now - self._looked > UNASKED:
            self._looked, self._seen_sent = now, sent
            return True
        return False

    def _all_left(self, exchange: Exchange) -> bool:
        return self._introduced and exchange.mailbox.left >= self.book.expected and exchange.switchyard.idle

    def _greet(self, exchange: Exchange) -> None:
        if len(self.book.expected) == self._world or time.monotonic() < self._greet_again:
            return
        # Who has not come within the first seconds is asked for now and then.
        self._greet_again = time.monotonic() + (1.0 if self._introduced else 0.0)
        for rank in exchange.mailbox.greetings():
            self.book.greet(rank)
        missing = sorted(set(range(self._world)).difference(self.book.expected))
        if not missing:
            self._introduce(exchange)
        elif not self._introduced and time.monotonic() - self._started > GREETING_PATIENCE:
            self._introduce(exchange)
            self._note(
                exchange,
                f"ranks {self._named(missing)} are not heard: call attach on every rank. "
                f"Going on with ranks {self._named(sorted(self.book.expected))} alone",
            )

    def _introduce(self, exchange: Exchange) -> None:
        if not self._introduced:
            self._introduced = True
            self._met(exchange.mailbox.greetings())

    def _collect(self, exchange: Exchange) -> None:
        ranks = sorted(self.book.expected)
        while ranks:
            fresh, lost = exchange.mailbox.collect(ranks)
            exchange.lost += lost
            for rank, signals in fresh.items():
                for signal in signals:
                    self.book.add_signal(rank, signal)
            ranks = sorted(fresh)

    def _decode(self, payload_W: list[Payload | None]) -> tuple[Tensor, Tensor]:
        empty = (torch.full((self._layout.length,), torch.nan), self._empty_groups())
        pairs = [
            empty if payload is None or payload.body is None else self._layout.decode(payload.body)
            for payload in payload_W
        ]
        return torch.stack([whole for whole, _ in pairs]), torch.stack([groups for _, groups in pairs], dim=1)

    def _empty_groups(self) -> Tensor:
        return torch.full((self._layout.groups, self._layout.group_length), torch.nan)

    def _consider(self, roll: RollCall, exchange: Exchange) -> None:
        record = measure(roll, self._memory, self._attempt, exchange.plan.in_burst(roll.step))
        self.last_step = max(self.last_step, roll.step)
        self._write(record)
        self._watch_ranks(exchange)
        self._plan_ahead(roll, record, exchange)

    def _watch_ranks(self, exchange: Exchange) -> None:
        silent = self.book.silent()
        if silent and silent != self._degraded:
            self._note(exchange, f"ranks {self._named(silent)} have fallen silent; going on with the others")
        elif self._degraded and not silent:
            self._note(exchange, f"ranks {self._named(self._degraded)} are heard again")
        self._degraded = silent

    def _named(self, workers: list[int]) -> list[int]:
        """By the numbers the launcher gave them: a group of some of the ranks counts its own from zero."""
        return [self._ranks[worker] for worker in workers]

    def _plan_ahead(self, roll: RollCall, record: StepRecord, exchange: Exchange) -> None:
        signals = [signal for signal in roll.signal_W if signal is not None]
        if not signals:
            return
        cost = max(signal.cost for signal in signals) + self._own_processor_time()
        self._budget.observe(max(signal.seconds for signal in signals), cost, record.heard)
        start = self._soon(exchange)
        share = exchange.plan.budget(start + AHEAD)
        if share is not None and start - self._interval_set_at >= FEWEST_STEPS_BETWEEN_INTERVALS:
            self._set_interval(start, share, exchange)
        if not all(signal.finite for signal in signals) and not record.skipped:
            self._start_burst(start, exchange)

    def _own_processor_time(self) -> float:
        """What this thread has used since the last step: on a CPU it is taken from training."""
        before, self._processor = self._processor, time.thread_time()
        return self._processor - before

    def _set_interval(self, start: int, share: float, exchange: Exchange) -> None:
        wanted = self._budget.interval(share, exchange.plan.longest_interval(start + AHEAD))
        current = exchange.plan.interval(start + AHEAD)
        # Small changes are not worth a new window of directions.
        if not current / 2 <= wanted <= current * 2:
            self._interval_set_at = start
            self._announce(Announcement(start=start, interval=wanted), exchange)

    def _start_burst(self, start: int, exchange: Exchange) -> None:
        if not exchange.plan.in_burst(start):
            self._announce(Announcement(start=start, end=start + WINDOW), exchange)

    def _reopen_directions(self, exchange: Exchange) -> None:
        yard, now = exchange.switchyard, time.monotonic()
        if not yard.broken or self._world == 1:
            return
        if self._retry_at == 0.0:
            self._note(exchange, "gradient directions are lost for a while")
            self._retry_at = now + self._retry_after
            self._retry_after = min(LONGEST_RETRY, 2 * self._retry_after)
        elif now >= self._retry_at and len(self.book.expected) == self._world and not self.book.silent():
            self._retry_at = 0.0
            self._announce(Announcement(start=self._soon(exchange), era=yard.era + 1), exchange)

    def _soon(self, exchange: Exchange) -> int:
        return max(self.last_step, exchange.newest) + self._budget.ahead()

    def _announce(self, announcement: Announcement, exchange: Exchange) -> None:
        exchange.mailbox.announce(announcement)
        exchange.take(announcement)

    def _note(self, exchange: Exchange, text: str) -> None:
        exchange.complain(text)
        self._write(NoteRecord(attempt=self._attempt, step=self.last_step, time=time.time(), text=text))
