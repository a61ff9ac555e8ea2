"""Rank 0 as the others see it: it writes the run file, so of its own end only they can tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from unisono.exchange.departures import Departures
from unisono.exchange.last_word import LastWord
from unisono.exchange.store import MessageStore
from unisono.records import DepartureRecord

SILENT_SECONDS = 5.0
"""Every rank gives a sign of life at least once a second; after so long without one it is silent."""

BETWEEN_SIGNS = 2.0
FIND_SECONDS, FIND_PAUSE = 0.4, 0.005
"""For finding out whether it was rank 0 that went: its process ends a moment after its connections."""


class WatchRank0:
    def __init__(
        self,
        message_store: MessageStore,
        departures: Departures,
        tell: Callable[[list[DepartureRecord]], None],
        take_back: Callable[[], None] = lambda: None,
    ) -> None:
        """:param take_back: Called when rank 0 was only silent."""
        self._message_store, self._departures, self._tell, self._take_back = message_store, departures, tell, take_back
        self._sign, self._sign_at, self._asked = b"", time.monotonic(), 0.0

    def turn(self, run_facts: dict[str, Any] | None, newest: int, stalled: float) -> None:
        if run_facts is None:
            return
        self._departures.attempt = run_facts["attempt"]
        self._departures.registered(0, run_facts)
        self._reported(newest - 1)
        self._departures.look(newest)
        self._listen(stalled)
        self._departures.miss(newest, stalled)
        self._tell(self._departures.news())

    def find(self, run_facts: dict[str, Any] | None, word: LastWord) -> None:
        """Whether it is rank 0 whose going has made this rank go."""
        if run_facts is None:
            return
        self._reported(word.step)
        deadline = time.monotonic() + FIND_SECONDS
        while True:
            self._departures.look(word.step, at_once=True)
            if self._departures.unexplained(word) and word.how != "signal":
                self._ask_store(word.step, run_facts["hosts_store"])
            self._departures.miss(word.step, 0.0, word)
            # Signals reach all ranks together: what is seen later says nothing about the order.
            if word.how == "signal" or not self._departures.unexplained(word) or time.monotonic() > deadline:
                break
            time.sleep(FIND_PAUSE)
        self._tell(self._departures.news(everything=True))

    def _reported(self, step: int) -> None:
        """No rank gets further without the others; where one does, rank 0 was left behind."""
        if 0 not in self._departures.gone:
            self._departures.reported(0, step)

    def _listen(self, stalled: float) -> None:
        """Where its process cannot be seen. It is missed only if nobody gets on."""
        now = time.monotonic()
        silent = self._departures.is_silent(0)
        if (self._departures.sees(0) and not silent) or now - self._asked < BETWEEN_SIGNS:
            return
        self._asked = now
        sign = self._message_store.sign_of_life()
        if sign != self._sign:
            self._sign, self._sign_at = sign, now
            if silent:
                self._departures.returned([0])
                self._take_back()
        elif not silent and min(now - self._sign_at, stalled) > SILENT_SECONDS:
            self._departures.silent([0], SILENT_SECONDS)

    def _ask_store(self, newest: int, hosted: bool) -> None:
        """:param hosted: Rank 0 hosts the store: it ends with its process."""
        try:
            if self._message_store.has_ended():
                self._departures.left(0, newest)
        except Exception:
            if hosted:
                self._departures.unreachable(0, newest)
