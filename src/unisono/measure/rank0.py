"""Rank 0's share of the listening thread: collects what the ranks say, measures, writes it down and plans ahead.

W = workers, P = bytes of a packet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from unisono.exchange.gloo_channel import Payloads
from unisono.exchange.store import REGISTRATION_PATIENCE, RankMessage
from unisono.exchange.thread import TURN, UNASKED, ExchangeThread
from unisono.listen.messages import AllRanksStep
from unisono.listen.validation import VALIDATION
from unisono.measure.adapt_schedule import ScheduleAdapter
from unisono.measure.evidence_records import EvidenceRecords
from unisono.measure.liveness import Liveness
from unisono.measure.step_assembler import StepAssembler
from unisono.measure.step_record import Memory, measure
from unisono.measure.validations import Validations
from unisono.records import NoteRecord, Record
from unisono.records.record_size_limit import shortened
from unisono.sketch.wire_format import WireFormat

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
    ) -> None:
        self._ranks, self._world = ranks, len(ranks)
        self.assembler = StepAssembler(self._world)
        self.last_step = -1
        self._attempt, self._layout = attempt, layout
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
        self._looked, self._seen_sent, self._register_again = 0.0, 0, 0.0

    def turn(self, exchange: ExchangeThread) -> None:
        self._register(exchange)
        if self._has_reason_to_look(exchange):
            self._collect(exchange)
        if self._introduced:
            self._write_down(exchange)
            self._watch_ranks(exchange)
        all_present = len(self.assembler.expected) == self._world and not self.assembler.silent()
        self._schedule_adapter.reopen_directions(exchange, all_present)
        if self._diagnosis.tell():
            self._schedule_adapter.suspect(exchange, keep=True)
        elif self._diagnosis.suspicious:
            self._schedule_adapter.look_closer(exchange)

    def _write_down(self, exchange: ExchangeThread, everything: bool = False) -> None:
        """Evidence first: what a step shows may be explained by it. A validation stands behind its step."""
        for record in self._assembly.complete(self.assembler.expected.difference(self.assembler.silent()), everything):
            self._write(record)
        for all_ranks in self.assembler.complete(self._plain_mean(), everything):
            self._write_validations(all_ranks.step - 1)
            self._consider(all_ranks, exchange)
        self._write_validations(self.last_step, everything)

    def _write_validations(self, written: int, everything: bool = False) -> None:
        for record in self._validations.complete(written, everything):
            self._write(record)

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
        while not self._all_left(exchange) and time.monotonic() < deadline:
            self._register(exchange)
            self._collect(exchange)
            exchange.exchange_directions()
            time.sleep(TURN / 4)
        self._introduce(exchange)
        self._write_down(exchange, everything=True)
        self._diagnosis.tell(last=True)
        exchange.lost += self.assembler.late

    def _has_reason_to_look(self, exchange: ExchangeThread) -> bool:
        """Each look at the store takes a tenth of a millisecond of processor time: not while nothing can be there."""
        now, sent = time.monotonic(), exchange.message_store.sent
        if now - self._looked < exchange.message_store.pace / 2:
            return False
        if self.assembler.open or sent != self._seen_sent or now - self._looked > UNASKED:
            self._looked, self._seen_sent = now, sent
            return True
        return False

    def _all_left(self, exchange: ExchangeThread) -> bool:
        return self._introduced and exchange.message_store.left >= self.assembler.expected and exchange.channel.idle

    def _register(self, exchange: ExchangeThread) -> None:
        if len(self.assembler.expected) == self._world or time.monotonic() < self._register_again:
            return
        # Who has not come within the first seconds is asked for now and then.
        self._register_again = time.monotonic() + (1.0 if self._introduced else 0.0)
        for rank in exchange.message_store.registrations():
            self.assembler.register(rank)
        missing = sorted(set(range(self._world)).difference(self.assembler.expected))
        if not missing:
            if self._introduced:
                self._note("all ranks are heard now", about="returned", ranks=self._named(range(self._world)))
            self._introduce(exchange)
        elif not self._introduced and time.monotonic() - self._started > REGISTRATION_PATIENCE:
            self._introduce(exchange)
            others = list(self._named(sorted(self.assembler.expected)))
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
        for signal in rank_message.signals:
            self.assembler.add_signal(rank, signal)
        for message in rank_message.messages:
            (self._validations if message["kind"] == VALIDATION else self._assembly).add(rank, message)
        if rank in exchange.message_store.left:
            self._liveness.left(rank)
        else:
            self._liveness.heard(rank, max(self.last_step, exchange.newest))

    def _consider(self, all_ranks: AllRanksStep, exchange: ExchangeThread) -> None:
        whole = measure(all_ranks, self._memory, self._attempt, exchange.plan.in_burst(all_ranks.step))
        record, left_out = shortened(whole)
        if not self._left_out.issuperset(left_out):
            self._left_out.update(left_out)
            names = ", ".join(left_out)
            self._note(f"records of {self._world} workers are too long for the run file; left out of them: {names}")
        self.last_step = max(self.last_step, all_ranks.step)
        self._write(record)
        self._schedule_adapter.after(all_ranks, record, exchange, self._diagnosis.skipped_by_guard(all_ranks.step))

    def _watch_ranks(self, exchange: ExchangeThread) -> None:
        for change in self._liveness.changes(max(self.last_step, exchange.newest)):
            ranks = self._named(change.workers)
            self._note(CHANGES[change.about].format(ranks=ranks), about=change.about, ranks=ranks)

    def _named(self, workers: Sequence[int]) -> tuple[int, ...]:
        """By the numbers the launcher gave them: a group of some of the ranks counts its own from zero."""
        return tuple(self._ranks[worker] for worker in workers)

    def _note(self, text: str, about: str = "", ranks: tuple[int, ...] = ()) -> None:
        self._complain(text)
        step = self.last_step
        self._write(NoteRecord(attempt=self._attempt, step=step, time=time.time(), text=text, about=about, ranks=ranks))
