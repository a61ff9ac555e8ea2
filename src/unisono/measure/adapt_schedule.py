"""Rank 0 plans ahead for all ranks: what a reading costs, bursts after a suspicion, a new side channel, questions."""

from __future__ import annotations

import time
from collections.abc import Callable

from unisono.common.backoff import Backoff
from unisono.common.schedule import BURST
from unisono.exchange.thread import ExchangeThread
from unisono.listen.listening_plan import Announcement, Cost
from unisono.listen.messages import AllRanksStep
from unisono.measure.follow_up_questions import FollowUpQuestions
from unisono.records import StepRecord, are_left_out

SHORTEST_RETRY, LONGEST_RETRY = 2.0, 60.0
LONGEST_BETWEEN_COSTS = 512
"""Steps after which a cost that has changed is announced again; sooner at first, when little has been measured."""

STEPS_BETWEEN_SUSPICIONS = 10 * BURST


class ScheduleAdapter:
    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self._cost = Cost()
        self._announced: Announcement | None = None
        self._questions = FollowUpQuestions()
        self._last_step = -1
        self._processor = time.thread_time()
        self._retry_at, self._backoff = 0.0, Backoff(SHORTEST_RETRY, LONGEST_RETRY)
        self._lost = False
        self._suspected_at = -STEPS_BETWEEN_SUSPICIONS

    def after(
        self, all_ranks: AllRanksStep, record: StepRecord, exchange: ExchangeThread, guarded: bool = False
    ) -> None:
        """A step has been written down."""
        self._last_step = max(self._last_step, record.step)
        signals = [signal for signal in all_ranks.signal_W if signal is not None]
        if not signals:
            return
        cost = max(signal.cost for signal in signals) + self._own_processor_time()
        self._cost.observe(max(signal.seconds for signal in signals), cost, record.heard)
        start = self._soon(exchange)
        if exchange.plan.needs_cost:
            self._tell_cost(start, exchange)
        spoilt = [worker for worker, one in enumerate(all_ranks.signal_W) if one is not None and not one.finite]
        # What steering left out has been dealt with, and may go on for the whole run.
        if spoilt and (guarded or not record.skipped) and not are_left_out(record, spoilt):
            self.suspect(exchange)
        for question in self._questions.about(record, start, guarded):
            self._announce(question, exchange)

    def look_closer(self, exchange: ExchangeThread) -> None:
        """A rule would like to hear more; not so often that listening costs more than its budget."""
        if self._last_step - self._suspected_at >= STEPS_BETWEEN_SUSPICIONS:
            self._suspected_at = self._last_step
            self.suspect(exchange)

    def suspect(self, exchange: ExchangeThread, keep: bool = False) -> None:
        """Listen closely for a while; on a finding every rank also keeps its last steps."""
        start = self._soon(exchange)
        if keep:
            self._announce(Announcement(start=start, keep=True), exchange)
        if not exchange.plan.in_burst(start):
            self._announce(Announcement(start=start, end=start + BURST), exchange)

    def directions_arrived(self) -> None:
        self._backoff.succeeded()
        if self._lost:
            self._lost = False
            self._note("gradient directions are heard again", about="directions-back")

    def reopen_directions(self, exchange: ExchangeThread, all_present: bool) -> None:
        channel, now = exchange.channel, time.monotonic()
        if not channel.broken:
            return
        if self._retry_at == 0.0:
            self._lost = True
            self._note("gradient directions are lost for a while", about="directions-lost")
            self._retry_at = now + self._backoff.failed()
        elif now >= self._retry_at and all_present:
            self._retry_at = 0.0
            self._announce(Announcement(start=self._soon(exchange), era=channel.era + 1), exchange)

    def _own_processor_time(self) -> float:
        """What this thread has used since the last step: on a CPU it is taken from training."""
        before, self._processor = self._processor, time.thread_time()
        return self._processor - before

    def _tell_cost(self, start: int, exchange: ExchangeThread) -> None:
        cost, last = self._cost.value, self._announced
        if cost is None:
            return
        if last is not None and last.cost is not None:
            # Small changes are not worth a new window of directions.
            soonest = last.start + min(self._cost.steps // 2, LONGEST_BETWEEN_COSTS)
            if start < soonest or last.cost / 2 <= cost <= last.cost * 2:
                return
        self._announced = Announcement(start=start, cost=cost)
        self._announce(self._announced, exchange)

    def _soon(self, exchange: ExchangeThread) -> int:
        return max(self._last_step, exchange.newest) + self._cost.ahead()

    def _announce(self, announcement: Announcement, exchange: ExchangeThread) -> None:
        exchange.message_store.announce(announcement)
        exchange.take(announcement)
