"""Messages in the job's own store: registrations, one small message per rank and step, and rank 0's announcements.

Setting a key costs microseconds, cannot deadlock and cannot be mismatched. Messages go round a ring of keys, so the
store's memory stays constant.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed

from unisono.common.limits import ALL_PAIRS_UP_TO
from unisono.exchange.last_word import LastWord
from unisono.exchange.rank_step_bytes import pack, unpack
from unisono.listen.listening_plan import Announcement
from unisono.listen.messages import RankStep

dist: Any = torch.distributed  # its stores are not in its annotations
SLOTS = 64
REGISTRATION_PATIENCE = 10.0
"""Seconds after which a rank that has not called `attach` is no longer waited for."""

MESSAGES_PER_SECOND = 5_000
"""Of all ranks together, where there are more than 64; a store takes some ten times as many."""

LONGEST_PACE = 1.0
TIMEOUT = timedelta(seconds=6)
"""For one answer; longer than the 5 s for which a name server may hold the store up."""

_HEADER = struct.Struct("<4sIqBQ")
_MAGIC = b"uni2"
_EMPTY = _HEADER.pack(_MAGIC, 0, -1, 0, 0)
_lock = threading.Lock()
_shared: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_spare: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RankMessage:
    signals: list[RankStep]
    messages: list[Message]
    """Evidence that is not part of a step's signal."""


class StoreConnections:
    """One monitor's part of the job's key-value store, over connections of our own: threads on one block each other.

    Connections are few and kept. Each new one can hold the whole store up for seconds, while its server looks for the
    caller's name. Keys are set apart by the group's ranks and by how many monitors that group has had.
    """

    def __init__(self, ranks: list[int], nth: int) -> None:
        self._prefix = f"unisono/{_restarts()}/{group_key(ranks)}/{nth}"
        # Held until the end, because rank 0 may host it and the script may let go of it before our last message.
        self._base = dist.HashStore() if len(ranks) == 1 else dist.distributed_c10d._get_default_store()
        self._alone = len(ranks) == 1

    def for_messages(self) -> Any:
        if self._alone:
            return self._base
        with _lock:
            shared = _shared.get(self._base) or _shared.setdefault(self._base, self._connect())
        return dist.PrefixStore(self._prefix, shared)

    @contextmanager
    def for_waiting(self) -> Iterator[Any]:
        """For whoever waits on it: nobody else uses the connection meanwhile."""
        with _lock:
            spare = _spare.setdefault(self._base, [])
            connection = spare.pop() if spare else None
        connection = connection or self._connect()
        yield dist.PrefixStore(self._prefix, connection)
        spare.append(connection)

    def let_go(self) -> None:
        self._base = None

    def _connect(self) -> Any:
        connection = self._base.clone()
        connection.set_timeout(TIMEOUT)
        return connection


def _restarts() -> str:
    """A launcher may keep the store when it restarts the ranks, and all that the last attempt has left in it.

    Several hosts do not always count alike: one that restarts because another one does may not count it.
    """
    one_host = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if one_host else "0"


def pace(world: int) -> float:
    """Seconds from one message of a rank to its next, at least: one server answers all of them."""
    return min(LONGEST_PACE, world / MESSAGES_PER_SECOND) if world > ALL_PAIRS_UP_TO else 0.0


def wait_for_registrations(store: Any, world: int, given_up: threading.Event) -> None:
    """Returns when every rank has called `attach`. Waits, so it has no place on the listening thread."""
    deadline = time.monotonic() + REGISTRATION_PATIENCE
    while not store.check(["everybody"]):
        if given_up.wait(max(0.02, pace(world))) or time.monotonic() > deadline:
            raise TimeoutError("not every rank has called attach")


class RankLeft(Exception):  # noqa: N818 (nothing is wrong: its job has ended)
    """Another rank has left before all were there."""


def enter_together(store: Any, era: int, world: int, given_up: threading.Event) -> None:
    """Returns on all ranks or raises on all: connecting waits for everybody, and cannot be called off once begun."""
    meeting = dist.PrefixStore(f"meeting/{era}", store)
    if meeting.add("arrived", 1) == world:
        meeting.compare_set("fate", "", "connect")
    deadline = time.monotonic() + REGISTRATION_PATIENCE
    while not meeting.check(["fate"]):
        # Whoever writes first decides: all may have arrived in this moment.
        if given_up.wait(max(0.02, pace(world))):
            meeting.compare_set("fate", "", "left")
        elif time.monotonic() > deadline:
            meeting.compare_set("fate", "", "late")
    fate = meeting.get("fate")
    if fate == b"left":
        raise RankLeft
    if fate == b"late":
        raise TimeoutError("a rank did not come")


class MessageStore:
    def __init__(self, open_store: Callable[[], Any], rank: int, world: int) -> None:
        self._open_store, self.rank, self._world = open_store, rank, world
        self.sent = self._signs = 0
        self._read = [0] * world
        self._announced = 0
        self.pace = pace(world)
        self._came, self._everybody = 0, False
        self._coming: set[int] = set()
        """Numbers that were taken by ranks whose registrations have not been read."""

        self._registrations: dict[int, dict[str, Any]] = {}
        self.left: set[int] = set()
        """Ranks that have sent their last message."""

    @functools.cached_property
    def _store(self) -> Any:
        """Opened by the first who needs it, the listening thread: connecting may take seconds."""
        return self._open_store()

    def register(self, facts: dict[str, Any]) -> None:
        """Registrations are numbered, so that rank 0 need not ask for everybody to learn who is new."""
        self._store.multi_set([f"m/{self.rank}/{slot}" for slot in range(SLOTS)], [_EMPTY] * SLOTS)
        number = self._store.add("came", 1)
        self._store.set(f"came/{number}", json.dumps([self.rank, facts]))

    def registrations(self) -> dict[int, dict[str, Any]]:
        """Facts of the ranks that have called `attach` so far. For rank 0."""
        came = self._store.add("came", 0)
        self._coming.update(range(self._came + 1, came + 1))
        self._came = came
        for number, registration in self._new_registrations():
            rank, facts = json.loads(registration)
            self._registrations[rank] = facts
            self._coming.discard(number)
        if len(self._registrations) == self._world and not self._everybody:
            self._store.set("everybody", "")
            self._everybody = True
        return self._registrations

    def host_of(self, rank: int) -> str:
        """As far as it has been read."""
        return str(self._registrations.get(rank, {}).get("host", ""))

    def _new_registrations(self) -> list[tuple[int, bytes]]:
        """Somebody may have taken a number and not written its registration yet, or never."""
        numbers = sorted(self._coming)
        if numbers and not self._store.check([f"came/{number}" for number in numbers]):
            numbers = [number for number in numbers if self._store.check([f"came/{number}"])]
        texts = self._store.multi_get([f"came/{number}" for number in numbers]) if numbers else []
        return list(zip(numbers, texts, strict=True))

    def publish_run(self, facts: dict[str, Any]) -> None:
        self._store.set("run", json.dumps(facts))

    def run_facts(self) -> dict[str, Any] | None:
        facts: dict[str, Any] | None = json.loads(self._store.get("run")) if self._store.check(["run"]) else None
        return facts

    def send(self, signals: Iterable[RankStep], messages: Sequence[Message] = (), last: bool = False) -> None:
        body = b"".join(map(pack, signals))
        header = _HEADER.pack(_MAGIC, self._world, self.sent, last, len(body))
        told = json.dumps(messages).encode() if messages else b""
        self._store.set(f"m/{self.rank}/{self.sent % SLOTS}", header + body + told)
        self.sent += 1

    def collect(self, ranks: list[int]) -> tuple[dict[int, RankMessage], int]:
        """New messages of `ranks`, one each, and how many were overwritten before they were read."""
        rank_messages = self._store.multi_get([f"m/{rank}/{self._read[rank] % SLOTS}" for rank in ranks])
        fresh: dict[int, RankMessage] = {}
        lost = 0
        for rank, rank_message in zip(ranks, rank_messages, strict=True):
            magic, world, number, last, size = _HEADER.unpack_from(rank_message)
            if magic != _MAGIC or number < self._read[rank] or world != self._world:
                continue
            lost += number - self._read[rank]
            self._read[rank] = number + 1
            body, told = rank_message[_HEADER.size : _HEADER.size + size], rank_message[_HEADER.size + size :]
            fresh[rank] = RankMessage(list(unpack(body)), json.loads(told) if told else [])
            if last:
                self.left.add(rank)
        return fresh, lost

    def last_word_over(self, store: Any, word: LastWord) -> None:
        """For whoever closes a listening thread that stands still, and may stand in the store."""
        header = _HEADER.pack(_MAGIC, self._world, self.sent, True, 0)
        store.set(f"m/{self.rank}/{self.sent % SLOTS}", header + json.dumps([word.message()]).encode())

    def give_sign_of_life(self) -> None:
        """Of rank 0, for the others."""
        self._signs += 1
        self._store.set("alive", str(self._signs))

    def sign_of_life(self) -> bytes:
        sign: bytes = self._store.get("alive") if self._store.check(["alive"]) else b""
        return sign

    def end(self) -> None:
        """Rank 0 takes nothing more."""
        self._store.set("ended", "")

    def has_ended(self) -> bool:
        ended: bool = self._store.check(["ended"])
        return ended

    def announce(self, announcement: Announcement) -> None:
        self._store.set(f"plan/{self._announced}", json.dumps(asdict(announcement)))
        self._announced += 1

    def announcements(self) -> list[Announcement]:
        """What rank 0 has announced since the last call."""
        news = []
        while self._store.check([f"plan/{self._announced}"]):
            news.append(Announcement(**json.loads(self._store.get(f"plan/{self._announced}"))))
            self._announced += 1
        return news


LONGEST = 64


def group_key(ranks: Sequence[int]) -> str:
    name = "-".join(map(str, ranks))
    if len(name) <= LONGEST:
        return name
    return f"{len(ranks)}-ranks-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"
