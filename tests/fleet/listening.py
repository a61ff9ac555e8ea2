"""Listening threads of a fleet's ranks that are turned by hand: what happens when is up to the test."""

import time

import torch
import torch.distributed as dist

from fleet.clock import Clock
from fleet.threads import Fleet
from unisono.common.schedule import every
from unisono.exchange import departures as departures_module
from unisono.exchange import gloo_channel, store, thread, watch_rank0
from unisono.exchange.departures import Departures
from unisono.exchange.gloo_channel import GlooChannel
from unisono.exchange.reconnect import ReconnectingChannel
from unisono.exchange.store import MessageStore, enter_together, wait_for_registrations
from unisono.exchange.thread import ExchangeThread
from unisono.exchange.watch_rank0 import WatchRank0
from unisono.listen.clock import clock_for
from unisono.listen.evidence.raw_evidence import RawEvidence
from unisono.listen.handover import Handover
from unisono.listen.listening_plan import ListeningPlan
from unisono.measure import adapt_schedule, evidence_records, liveness, rank0, step_assembler, validations
from unisono.measure.rank0 import Rank0
from unisono.records import DepartureRecord, NoteRecord, StepRecord
from unisono.sketch.wire_format import WireFormat

CPU = torch.device("cpu")
CLOCKED = (
    *(store, thread, gloo_channel, departures_module, watch_rank0),
    *(adapt_schedule, evidence_records, liveness, rank0, step_assembler, validations),
)
FIRST_RANK = 4
"""The launcher's number of the first worker: workers are told by these, not by their place."""

PATIENT = 10.0
"""Real seconds for what goes through sockets."""


class Readout:
    """A gradient's sketch that lies ready: that of rank r points along its r-th axis and along the first."""

    def __init__(self, rank, broken=0):
        self.rank, self._broken = rank, broken
        self.discarded = 0

    def ready(self):
        return True

    def discard(self):
        self.discarded += 1

    def squared_norms(self):
        return self._broken, (float(self.rank + 1),)

    def directions(self, layout, unscale):
        sketch_GK = torch.zeros(1, layout.model_length)
        sketch_GK[0, 0], sketch_GK[0, 1 + self.rank] = 1.0, 1.0
        return layout.encode(sketch_GK, 0)


def handover(step, rank, due=False, readout=None, facts=None, **numbers):
    values = {"time": float(step), "window": 0, "skipped": False, "cost": 0.0, "clock": clock_for(CPU)}
    values |= {"began": 0.0, "backward": None, "ended": 0.5, "loss": float(rank)}
    values |= dict.fromkeys(("scale", "clip_norm", "finite_sum", "reduced_share")) | numbers
    evidence = RawEvidence(facts=facts or {})
    return Handover(step=step, due=due, readout=readout, raw_evidence=evidence, **values).send(CPU)


class Diagnosis:
    """Nothing is found, unless the test says so."""

    def __init__(self):
        self.suspicious, self.found, self.told_last = False, False, False

    def tell(self, last=False):
        self.told_last = self.told_last or last
        found, self.found = self.found, False
        return found

    def skipped_by_guard(self, step):
        return False


class Listeners:
    """
    :param monkeypatch: Sets the clock of all modules that look at it; without it they see the real one.
    :param processes: By rank, what it says of its process; without it nobody can see another's end.
    """

    def __init__(self, world, monkeypatch=None, processes=None):
        self.world, self.fleet, self.clock = world, Fleet(world), Clock()
        if monkeypatch is not None:
            self.clock.install(monkeypatch, *CLOCKED)
        self.layout = WireFormat(1_024, 1, world)
        self.records, self.complaints, self.met, self.diagnosis = [], [], [], Diagnosis()
        self.kept = [[] for _ in range(world)]
        self.saved, self.finished, self.deaf = [], [], []
        self.told = [[] for _ in range(world)]
        """By rank, the departures that it has seen of rank 0."""

        self.processes = processes or {}
        self.rank0 = Rank0(
            [FIRST_RANK + rank for rank in range(world)],
            1,
            self.layout,
            self.records.append,
            self.met.append,
            self.diagnosis,
            lambda: True,
            self.complaints.append,
        )
        self.exchanges = [self._exchange(rank) for rank in range(world)]

    def _exchange(self, rank):
        def connect(era, start, given_up):
            wait_for_registrations(self.fleet.hash_store, self.world, given_up)
            enter_together(self.fleet.hash_store, era, self.world, given_up)
            place = dist.PrefixStore("channel", self.fleet.hash_store)
            return GlooChannel(place, rank, self.world, self.layout.size, era, start)

        message_store = MessageStore(lambda: self.fleet.stores[rank], rank, self.world)
        departures = Departures([FIRST_RANK + one for one in range(self.world)], rank, 1)
        return ExchangeThread(
            message_store,
            ReconnectingChannel(connect, self.complaints.append),
            ListeningPlan(every(1)),
            self.layout,
            {"rank": FIRST_RANK + rank, "host": f"host-{rank}", "process": self.processes.get(rank, {})},
            self._run_facts() if rank == 0 else None,
            keep=self.kept[rank].append,
            complain=self.complaints.append,
            rank0=self.rank0 if rank == 0 else None,
            write_last_steps=lambda: self.saved.append(rank),
            finished=lambda: self.finished.append(rank),
            departures=departures,
            watch=WatchRank0(message_store, departures, self.told[rank].extend),
            deaf=lambda word, closing: self.deaf.append((rank, word, closing)),
        )

    def _run_facts(self):
        return {"run_dir": "runs/1", "attempt": 1, "hosts_store": True, "process": self.processes.get(0, {})}

    def submit(self, step, *ranks, **options):
        for rank in ranks or range(self.world):
            self.exchanges[rank].submit(handover(step, rank, **options))

    def submit_heard(self, step, *ranks):
        for rank in ranks or range(self.world):
            self.exchanges[rank].submit(handover(step, rank, due=True, readout=Readout(rank)))

    def turn(self, *ranks, seconds=0.05):
        """Everybody else's first: what they say is read in the same round."""
        self.clock.advance(seconds)
        for rank in sorted(ranks or range(self.world), reverse=True):
            self.exchanges[rank]._turn()

    def turn_until(self, condition, *ranks, seconds=0.0):
        deadline = time.monotonic() + PATIENT
        while not condition():
            assert time.monotonic() < deadline, (self.complaints, self.notes)
            self.turn(*ranks, seconds=seconds)
            time.sleep(0.002)

    def connect(self, era=0, start=0):
        """All ranks open the side channel."""
        for exchange in self.exchanges:
            exchange.channel.begin(era, start)
        self.turn_until(self.connected)

    def connected(self):
        return all(one.channel._channel is not None for one in self.exchanges)

    def end(self):
        for exchange in self.exchanges:
            exchange.channel.end()

    @property
    def steps(self):
        return [record for record in self.records if isinstance(record, StepRecord)]

    @property
    def departures(self):
        return [record for record in self.records if isinstance(record, DepartureRecord)]

    @property
    def notes(self):
        return [(note.about, note.ranks) for note in self.records if isinstance(note, NoteRecord)]
