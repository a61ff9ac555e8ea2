"""Ranks that go, as another one sees it: by their last word, by the end of their process, by what the others miss.

Rank 0 watches all, the others watch rank 0.

A rank that leaves in good order, or whose process ends without a word, may be done: it is missed only when training
cannot go on without it, or goes on and leaves it behind. One that ends with an exit code has failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from unisono.exchange.last_word import LastWord
from unisono.exchange.processes import is_gone, is_seen
from unisono.records import DepartureRecord
from unisono.records.departure_order import SOON, first_to_go, latest_of_each, lost_a_peer

BETWEEN_LOOKS = 0.5
"""Seconds from one look at the processes on this machine to the next."""

MISSED_AFTER = 1.0
"""Seconds that training stands in a step until a rank that has gone is missed."""

LEFT_BEHIND = 2
"""Steps that others finish after a rank has gone, beyond its own last one, until it counts as left behind."""

HELD = 2.0
"""Seconds for which what may be a consequence waits for its cause."""

STAYS = 0.3
"""Seconds that a process stays at least after a signal that ends it."""

NO_WORD = "its process is gone and left no word: killed, out of memory, or ended at once"
NO_CONNECTION = "it left no word, and the others lost their connection to it"
NO_STORE = "it left no word, and the store that it hosts no longer answers"


@dataclass(frozen=True, slots=True)
class Absence:
    """Somebody is no longer there, and nobody may miss it."""

    how: str
    detail: str
    since: float
    at: float
    """The same by the wall clock, as in a last word."""

    newest: int
    """The newest step of the whole job at that time."""

    closed: bool = False
    """It said that all is well, and its process may live on."""

    process: dict[str, Any] | None = None

    @property
    def lives(self) -> bool:
        return self.closed and self.process is not None and not is_gone(self.process)

    @property
    def unseen(self) -> bool:
        """Nobody knows whether its process lives."""
        return self.closed and self.process is None


class Departures:
    def __init__(self, ranks: Sequence[int], own: int, attempt: int = 0) -> None:
        self._ranks, self._own, self.attempt = ranks, own, attempt
        self._met: set[int] = set()
        self._processes: dict[int, dict[str, Any]] = {}
        """Of the workers whose end this process would see."""

        self._reached: dict[int, int] = {}
        """The last step that each worker has reported."""

        self._absent: dict[int, Absence] = {}
        self._departed: dict[int, DepartureRecord] = {}
        self._written: set[int] = set()
        self._held_since = 0.0
        self._looked = 0.0

    @property
    def gone(self) -> set[int]:
        """Workers that nothing more will come from."""
        return {*self._absent, *self._departed}

    @property
    def lost(self) -> set[int]:
        """Workers that have gone or whose process has ended, whether or not they are missed; not the silent ones."""
        gone = {worker for worker, departure in self._departed.items() if departure.how != "silence"}
        return gone | {worker for worker, absence in self._absent.items() if absence.how == "lost"}

    @property
    def first(self) -> list[DepartureRecord]:
        """Of those that have gone, who explains the others; empty where that is not known."""
        return first_to_go(list(self._departed.values()), len(self._ranks))

    def registered(self, worker: int, facts: dict[str, Any]) -> None:
        if worker not in self._met:
            self._met.add(worker)
            process = facts.get("process") or {}
            if is_seen(process):
                self._processes[worker] = process

    def sees(self, worker: int) -> bool:
        """Whether its process would be seen to end, or has been."""
        return worker in self._processes or worker in self.gone

    def reported(self, worker: int, step: int) -> None:
        self._reached[worker] = max(step, self.reached(worker))

    def reached(self, worker: int) -> int:
        """The last step that the worker is known to have finished."""
        return self._reached.get(worker, -1)

    def said(self, worker: int, word: LastWord, newest: int, own: LastWord | None) -> None:
        """The worker's last word. Clocks of other machines say little about the order of signals."""
        self.reported(worker, word.step)
        self._absent.pop(worker, None)
        process = self._processes.pop(worker, None)
        if word.how in ("", "exit") and not word.exit_code:
            now = time.monotonic()
            self._absent[worker] = Absence("exit", word.detail, now, time.time(), newest, not word.how, process)
        else:
            at = own.time if own is not None and word.how == "signal" and process is None else word.time
            self._depart(worker, word.how, word.detail, told_by=worker, at=at)

    def silent(self, workers: Iterable[int], seconds: float) -> None:
        for worker in workers:
            lives = ", though its process lives" if worker in self._processes else ""
            self._depart(worker, "silence", f"no sign of life for {seconds:.0f} s{lives}")

    def returned(self, workers: Iterable[int]) -> None:
        for worker in workers:
            self._departed.pop(worker, None)
            self._written.discard(worker)

    def is_silent(self, worker: int) -> bool:
        return worker in self._departed and self._departed[worker].how == "silence"

    def look(self, newest: int, at_once: bool = False) -> None:
        """At the processes on this machine."""
        now = time.monotonic()
        if now - self._looked < BETWEEN_LOOKS and not at_once:
            return
        self._looked = now
        for worker, process in list(self._processes.items()):
            if worker != self._own and is_gone(process):
                del self._processes[worker]
                self._absent[worker] = Absence("lost", NO_WORD, now, time.time(), newest)

    def unreachable(self, worker: int, newest: int) -> None:
        """What only its process could answer is not answered."""
        if worker not in self._departed:
            self._absent[worker] = Absence("lost", NO_STORE, time.monotonic(), time.time(), newest)

    def left(self, worker: int, newest: int) -> None:
        """It has said that it takes nothing more."""
        if worker not in self._departed:
            self._absent[worker] = Absence("exit", "", time.monotonic(), time.time(), newest)

    def miss(self, newest: int, stalled: float, own: LastWord | None = None) -> None:
        """Training cannot go on without who is absent, or has gone on without it.

        :param stalled: Seconds for which training has stood in a step.
        :param own: The watcher's last word, where it goes itself.
        """
        now = time.monotonic()
        for worker, absence in list(self._absent.items()):
            stands = min(stalled, now - absence.since) >= MISSED_AFTER
            missed = (stands or self.left_behind(worker, absence.newest, newest)) and not absence.unseen
            if (missed or self._ends(own, absence)) and not absence.lives:
                self._depart(worker, absence.how, absence.detail)

    def left_behind(self, worker: int, newest_then: int, newest: int) -> bool:
        """Without synchronisation a rank may be done long before the others: what counts is its own last step too.

        :param newest_then: The newest step of the whole job when the worker was last there.
        """
        return newest >= max(newest_then, self.reached(worker)) + LEFT_BEHIND

    def _ends(self, own: LastWord | None, absence: Absence) -> bool:
        """Whether the watcher goes because the other one has gone: it says so, or is sent away at once."""
        if own is None:
            return False
        # One that was sent away by the same signal would have left a word, and stayed for longer.
        soon = -SOON < absence.at - own.time < STAYS / 2
        sent_away = own.how == "signal" and absence.how == "lost" and soon
        return sent_away or (self._lost_a_peer(own) and not absence.unseen)

    @property
    def undecided(self) -> bool:
        """Whether somebody is absent, and nobody knows yet whether its process ends."""
        return bool(self._absent)

    def suspect(self, quiet: set[int]) -> None:
        """Of those that have left, or said nothing while the others went, there is only one: it went first."""
        suspects = quiet | {worker for worker, absence in self._absent.items() if not absence.closed}
        if len(suspects) == 1:
            worker = suspects.pop()
            absence = self._absent.get(worker, Absence("lost", NO_CONNECTION, 0.0, 0.0, 0))
            self._depart(worker, absence.how, absence.detail)

    def news(self, everything: bool = False) -> list[DepartureRecord]:
        """What is to be written down now, causes first. What may be a consequence waits for its cause."""
        fresh = [one for worker, one in self._departed.items() if worker not in self._written]
        if not fresh:
            self._held_since = 0.0
            return []
        self._held_since = self._held_since or time.monotonic()
        first = self.first
        held = time.monotonic() - self._held_since
        # Where all end with the same code, nobody has gone.
        plain = [one for one in first if one.how != "signal" and (one.how != "exit" or held >= MISSED_AFTER)]
        if not (everything or plain or held > HELD):
            return []
        self._written.update(self._departed)
        return [*(one for one in fresh if one in first), *(one for one in fresh if one not in first)]

    def unexplained(self, word: LastWord | None) -> bool:
        """Whether the watcher itself goes for a reason that is still to be found out."""
        if word is None or self.first:
            return False
        return word.how == "signal" or self._lost_a_peer(word)

    def _lost_a_peer(self, word: LastWord) -> bool:
        return lost_a_peer(self._record(self._own, word.how, word.detail, self._own, word.time))

    def _depart(self, worker: int, how: str, detail: str, told_by: int | None = None, at: float | None = None) -> None:
        self._absent.pop(worker, None)
        known = self._departed.get(worker)
        departure = self._record(worker, how, detail, self._own if told_by is None else told_by, at)
        if known is None or latest_of_each((known, departure)) == [departure]:
            self._departed[worker] = departure
            self._written.discard(worker)

    def _record(self, worker: int, how: str, detail: str, told_by: int, at: float | None) -> DepartureRecord:
        return DepartureRecord(
            attempt=self.attempt,
            step=self.reached(worker),
            time=time.time() if at is None else at,
            rank=self._ranks[worker],
            how=how,
            detail=detail,
            told_by=self._ranks[told_by],
        )
