"""Rank 0's share of the listening thread: collects what the ranks say, measures, writes it down and plans ahead.

W = workers, P = bytes of a packet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from unisono.exchange.gloo_channel import Payloads
from unisono.exchange.last_word import LAST_WORD, LastWord
from unisono.exchange.store import REGISTRATION_PATIENCE, RankMessage
from unisono.exchange.thread import GOING, TURN, UNASKED, ExchangeThread
from unisono.exchange.watch_rank0 import SILENT_SECONDS
from unisono.listen.listening_plan import Announcement
from unisono.listen.messages import AllRanksStep
from unisono.listen.validation import VALIDATION
from unisono.measure.adapt_schedule import ScheduleAdapter
from unisono.measure.evidence_records import EvidenceRecords
from unisono.measure.liveness import Liveness
from unisono.measure.step_assembler import StepAssembler
from unisono.measure.step_record import Memory, measure
from unisono.measure.validations import Validations
from unisono.records import HeartbeatRecord, NoteRecord, Record
from unisono.records.departure_order import in_words
from unisono.records.record_size_limit import shortened
from unisono.sketch.wire_format import WireFormat

HEARTBEAT_SECONDS = 10.0
"""Without a record after which one says that the writer lives."""

LAST_WORDS_SECONDS, GRACE_SECONDS = 1.0, 0.2
"""For the last words of ranks that have told everything else; for what may be on its way when some have gone."""

LAST_DIRECTIONS_SECONDS = 0.5
"""For directions that are on their way when all have said that they are done; in short jobs, for their connection."""

FIND_SECONDS, FIND_SECONDS_SIGNALLED = 0.8, 0.4
"""For finding out who went first, where rank 0 goes itself; a signal ends the process after 0.8 s."""

QUIET_SECONDS = 2.5
"""Without a sign of life after which nobody waits for a rank at the end."""

CHANGES = {
    "missing": "ranks {ranks} give no sign of life, and nobody gets on with training",
    "unheard": "ranks {ranks} have fallen silent; going on with the others",
    "returned": "ranks {ranks} are heard again",
}


class TellsFindings(Protocol):
    """Diagnosis while training runs."""

    @property
    def suspicious(self) -> bool: ...
    def tell(self, last: bool = False) -> bool: ...
    def skipped_by_guard(self, step: int) -> bool: ...


class Rank0:
    def __init__(
        self,
        ranks: list[int],
        attempt: int,
        layout: WireFormat,
        write: Callable[[Record], None],
        met: Callable[[dict[int, dict[str, Any]]], None],
        diagnosis: TellsFindings,
        plain_mean: Callable[[], bool],
        complain: Callable[[str], None],
        first_step: int = 0,
    ) -> None:
        self._ranks, self._world = ranks, len(ranks)
        self.assembler = StepAssembler(self._world)
        self.last_step = -1
        self._attempt, self._layout, self._first_step = attempt, layout, first_step
        self._written_at = time.monotonic()
        self._answered: set[int] = set()
        """Workers of which something has come since the end began."""

        self._write, self._met, self._plain_mean, self._complain = write, met, plain_mean, complain
        self._diagnosis = diagnosis
        self._memory = Memory()
        self._left_out: set[str] = set()
        """Lists that did not fit into the run file."""

        self._assembly = EvidenceRecords(self._world, attempt)
        self._validations = Validations(ranks, attempt)
        self._liveness = Liveness()
        self._schedule_adapter = ScheduleAdapter(self._note)
        self._started = time.monotonic()
        self._introduced = False
        self._unheard: set[int] = set()
        """Workers that were said to be unheard."""

        self._last_words: dict[int, tuple[LastWord, int]] = {}
        """With the newest step of the job when it came."""

        self._looked, self._seen_sent, self._register_again = 0.0, 0, 0.0
        self._all_done_at: float | None = None

    def turn(self, exchange: ExchangeThread) -> None:
        self._register(exchange)
        if self._has_reason_to_look(exchange):
            self._collect(exchange)
        if self._introduced:
            self._write_down(exchange)
            self._watch_ranks(exchange)
            self._keep_alive()
        all_present = len(self.assembler.expected) == self._world and not self.assembler.silent()
        self._schedule_adapter.reopen_directions(exchange, all_present)
        if self._diagnosis.tell():
            self._schedule_adapter.suspect(exchange, keep=True)
        elif self._diagnosis.suspicious:
            self._schedule_adapter.look_closer(exchange)

    def _write_down(self, exchange: ExchangeThread, everything: bool = False) -> None:
        """Evidence first: what a step shows may be explained by it. A validation stands behind its step."""
        for record in self._assembly.complete(self.assembler.expected.difference(self.assembler.silent()), everything):
            self._put(record)
        for all_ranks in self.assembler.complete(self._plain_mean(), everything):
            self._write_validations(all_ranks.step - 1)
            self._consider(all_ranks, exchange)
        self._write_validations(self.last_step, everything)

    def _write_validations(self, written: int, everything: bool = False) -> None:
        for record in self._validations.complete(written, everything):
            self._put(record)

    def heard_again(self) -> None:
        self._note(CHANGES["returned"].format(ranks=self._named([0])), about="returned", ranks=self._named([0]))

    def awaits(self, step: int) -> None:
        self.assembler.await_directions(step)

    def directions_lost(self) -> None:
        self.assembler.lose_directions()

    def gathered(self, step: int, packets_WP: Tensor) -> bool:
        payloads = Payloads.from_packets(packets_WP)
        if payloads is None:
            return False
        self.assembler.add_directions(step, self._layout.decode(payloads.body_WB, payloads.sent_W))
        self._schedule_adapter.directions_arrived()
        return True

    def finish(self, exchange: ExchangeThread, deadline: float) -> None:
        """Takes what may still come, and says who has gone and who was not heard."""
        word, began = exchange.last_word or LastWord(), time.monotonic()
        self._others_answer(exchange, word)
        self._take_what_came(exchange, word)
        # What has held rank 0 up until now may have held the others up as well.
        deadline = max(deadline, time.monotonic() + LAST_WORDS_SECONDS)
        while time.monotonic() < deadline and self._may_still_come(exchange, word, time.monotonic() - began):
            time.sleep(TURN / 4)
            self._take_what_came(exchange, word)
        self._introduce(exchange)
        self._write_down(exchange, everything=True)
        self._suspect(exchange, word)
        self._tell_departures(exchange, everything=True)
        self._tell_unheard(exchange, word)
        self._diagnosis.tell(last=True)
        exchange.lost += self.assembler.late
        exchange.message_store.end()

    def _take_what_came(self, exchange: ExchangeThread, word: LastWord) -> None:
        self._register(exchange)
        self._collect(exchange)
        exchange.exchange_directions()
        exchange.departures.look(exchange.newest, at_once=True)
        exchange.departures.miss(exchange.newest, exchange.stalled(), word)

    def _others_answer(self, exchange: ExchangeThread, word: LastWord) -> None:
        """Where rank 0 goes for a reason that is to be found out, who still lives gives a sign of life."""
        self._collect(exchange)
        self._answered = {0}
        if self._introduced and exchange.departures.unexplained(word):
            exchange.message_store.announce(Announcement(start=exchange.newest, keep=True))

    def _may_still_come(self, exchange: ExchangeThread, word: LastWord, waited: float) -> bool:
        """Something that is worth waiting for, of ranks that are still there."""
        others = set(range(1, self._world)).difference(exchange.message_store.left, exchange.departures.gone)
        if word.how in GOING:
            if not exchange.departures.unexplained(word):
                return bool(others) and waited < GRACE_SECONDS
            patience = FIND_SECONDS_SIGNALLED if word.how == "signal" else FIND_SECONDS
            return (bool(others) or exchange.departures.undecided) and waited < patience
        if self._introduced and not others:
            self._all_done_at = self._all_done_at or time.monotonic()
            return not exchange.channel.idle and time.monotonic() - self._all_done_at < LAST_DIRECTIONS_SECONDS
        lagging = [worker for worker in others if self._lags(worker, exchange)]
        return bool(lagging) or waited < LAST_WORDS_SECONDS

    def _lags(self, worker: int, exchange: ExchangeThread) -> bool:
        """It lived a moment ago, and has neither told of steps that this rank has finished nor that it has none."""
        behind = exchange.departures.reached(worker) < exchange.newest and worker not in self._answered
        return behind and self._liveness.silence(worker) < QUIET_SECONDS

    def _suspect(self, exchange: ExchangeThread, word: LastWord) -> None:
        """The one rank that left, or gave no sign of life, while rank 0 and the others went has gone first."""
        departures = exchange.departures
        if word.how != "exception" or not departures.unexplained(word):
            return
        departures.suspect(
            set(range(self._world)).difference(self._answered, exchange.message_store.left, departures.gone)
        )

    def _tell_departures(self, exchange: ExchangeThread, everything: bool = False) -> None:
        for departure in exchange.departures.news(everything):
            worker = self._ranks.index(departure.rank)
            if departure.how != "silence":
                self._liveness.left(worker)
            self._put(departure)
            if departure in exchange.departures.first:
                self._complain(in_words(departure, exchange.message_store.host_of(worker)))

    def _tell_unheard(self, exchange: ExchangeThread, word: LastWord) -> None:
        """Who trained without being heard, also where the job was too short for it to be noticed before."""
        since: dict[int, list[int]] = {}
        for worker in sorted(set(range(self._world)).difference(exchange.departures.lost, self._unheard)):
            first = self._unheard_since(worker, exchange, word)
            if first is not None:
                since.setdefault(first, []).append(worker)
        for step, workers in sorted(since.items()):
            ranks = self._named(workers)
            came = [worker for worker in workers if worker in self.assembler.expected]
            text = f"ranks {list(ranks)} are not heard since step {step}, though training went on"
            self._note(text if came else f"{text}: call attach on every rank", "unheard", ranks, step)

    def _unheard_since(self, worker: int, exchange: ExchangeThread, word: LastWord) -> int | None:
        reached = exchange.departures.reached(worker)
        last, newest = self._last_words.get(worker, (None, exchange.newest))
        if last is not None and last.unheard_since is not None:
            return last.unheard_since
        if word.how in GOING or exchange.newest < 0:
            return None
        behind = reached < exchange.newest and worker not in self._answered
        left_behind = behind if last is None else exchange.departures.left_behind(worker, newest, exchange.newest)
        return max(reached + 1, self._first_step) if left_behind else None

    def _keep_alive(self) -> None:
        if time.monotonic() - self._written_at > HEARTBEAT_SECONDS:
            self._put(HeartbeatRecord(attempt=self._attempt, step=self.last_step, time=time.time()))

    def _put(self, record: Record) -> None:
        self._written_at = time.monotonic()
        self._write(record)

    def _has_reason_to_look(self, exchange: ExchangeThread) -> bool:
        """Each look at the store takes a tenth of a millisecond of processor time: not while nothing can be there."""
        now, sent = time.monotonic(), exchange.message_store.sent
        if now - self._looked < exchange.message_store.pace / 2:
            return False
        if self.assembler.open or sent != self._seen_sent or now - self._looked > UNASKED:
            self._looked, self._seen_sent = now, sent
            return True
        return False

    def _register(self, exchange: ExchangeThread) -> None:
        if len(self.assembler.expected) == self._world or time.monotonic() < self._register_again:
            return
        # Who has not come within the first seconds is asked for now and then.
        self._register_again = time.monotonic() + (1.0 if self._introduced else 0.0)
        for rank, facts in exchange.message_store.registrations().items():
            self.assembler.register(rank)
            exchange.departures.registered(rank, facts)
        missing = sorted(set(range(self._world)).difference(self.assembler.expected))
        if not missing:
            if self._introduced:
                self._unheard.clear()
                self._note("all ranks are heard now", about="returned", ranks=self._named(range(self._world)))
            self._introduce(exchange)
        elif not self._introduced and time.monotonic() - self._started > REGISTRATION_PATIENCE:
            self._introduce(exchange)
            others = list(self._named(sorted(self.assembler.expected)))
            self._unheard.update(missing)
            self._note(
                f"ranks {list(self._named(missing))} are not heard: call attach on every rank. "
                f"Going on with ranks {others} alone",
                about="unheard",
                ranks=self._named(missing),
            )

    def _introduce(self, exchange: ExchangeThread) -> None:
        if not self._introduced:
            self._introduced = True
            self._met(exchange.message_store.registrations())

    def _collect(self, exchange: ExchangeThread) -> None:
        ranks = sorted(self.assembler.expected)
        while ranks:
            fresh, lost = exchange.message_store.collect(ranks)
            exchange.lost += lost
            for rank, rank_message in fresh.items():
                self._take(rank, rank_message, exchange)
            ranks = sorted(fresh)

    def _take(self, rank: int, rank_message: RankMessage, exchange: ExchangeThread) -> None:
        self._answered.add(rank)
        for signal in rank_message.signals:
            self.assembler.add_signal(rank, signal)
            exchange.departures.reported(rank, signal.step)
        for message in rank_message.messages:
            if message["kind"] == LAST_WORD:
                self._take_last_word(rank, LastWord.of(message), exchange)
            else:
                (self._validations if message["kind"] == VALIDATION else self._assembly).add(rank, message)
        if rank in exchange.message_store.left:
            self._liveness.left(rank)
        else:
            self._liveness.heard(rank, max(self.last_step, exchange.newest))

    def _take_last_word(self, rank: int, word: LastWord, exchange: ExchangeThread) -> None:
        newest = max(self.last_step, exchange.newest)
        self._last_words[rank] = word, newest
        exchange.departures.said(rank, word, newest, exchange.last_word)

    def _consider(self, all_ranks: AllRanksStep, exchange: ExchangeThread) -> None:
        whole = measure(all_ranks, self._memory, self._attempt, exchange.plan.in_burst(all_ranks.step))
        record, left_out = shortened(whole)
        if not self._left_out.issuperset(left_out):
            self._left_out.update(left_out)
            names = ", ".join(left_out)
            self._note(f"records of {self._world} workers are too long for the run file; left out of them: {names}")
        self.last_step = max(self.last_step, all_ranks.step)
        self._put(record)
        self._schedule_adapter.after(all_ranks, record, exchange, self._diagnosis.skipped_by_guard(all_ranks.step))

    def _watch_ranks(self, exchange: ExchangeThread) -> None:
        departures, newest = exchange.departures, max(self.last_step, exchange.newest)
        departures.look(newest)
        for worker in departures.lost:
            # Its silence says nothing more; it is told of when somebody misses it.
            self._liveness.left(worker)
        for change in self._liveness.changes(newest):
            ranks = self._named(change.workers)
            self._note(CHANGES[change.about].format(ranks=ranks), about=change.about, ranks=ranks)
            if change.about == "missing":
                departures.silent(change.workers, SILENT_SECONDS)
            else:
                departures.returned(change.workers)
                changed = self._unheard.update if change.about == "unheard" else self._unheard.difference_update
                changed(change.workers)
        departures.miss(newest, exchange.stalled())
        self._tell_departures(exchange)

    def _named(self, workers: Sequence[int]) -> tuple[int, ...]:
        """By the numbers the launcher gave them: a group of some of the ranks counts its own from zero."""
        return tuple(self._ranks[worker] for worker in workers)

    def _note(self, text: str, about: str = "", ranks: tuple[int, ...] = (), step: int | None = None) -> None:
        self._complain(text)
        step = self.last_step if step is None else step
        self._put(NoteRecord(attempt=self._attempt, step=step, time=time.time(), text=text, about=about, ranks=ranks))
