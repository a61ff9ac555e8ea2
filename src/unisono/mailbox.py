"""The job's own store as a letter box: greetings, one small message per rank and step, and rank 0's announcements.

Setting a key costs microseconds, cannot deadlock and cannot be mismatched. Messages go round a ring of keys, so the
store's memory stays constant.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch.distributed

from unisono.plan import Announcement
from unisono.signals import LocalSignal, pack, unpack

dist: Any = torch.distributed  # its stores are not in its annotations
SLOTS = 64
_HEADER = struct.Struct("<4sIqB")
_MAGIC = b"uni1"
_EMPTY = _HEADER.pack(_MAGIC, 0, -1, 0)


def open_store(ranks: list[int], nth: int) -> tuple[Any, Any]:
    """A connection of our own to the job's store (a second thread on the job's would block it), and the store itself.

    Keys are set apart by the group's ranks and by how many monitors that group has had.
    """
    if len(ranks) == 1:
        store = dist.HashStore()
        return store, store
    base = dist.distributed_c10d._get_default_store()
    group = "-".join(map(str, ranks))
    store = dist.PrefixStore(f"unisono/{group}/{nth}", base.clone())
    store.set_timeout(timedelta(seconds=5))
    return store, base


class Mailbox:
    def __init__(self, store: Any, rank: int, world: int) -> None:
        self._store, self._rank, self._world = store, rank, world
        self.sent = 0
        self._read = [0] * world
        self._announced = 0
        self.left: set[int] = set()
        """Ranks that have sent their last message."""

    def greet(self, facts: dict[str, Any]) -> None:
        for slot in range(SLOTS):
            self._store.set(f"m/{self._rank}/{slot}", _EMPTY)
        self._store.set(f"hello/{self._rank}", json.dumps(facts))

    def everybody_greeted(self) -> bool:
        return bool(self._store.check([f"hello/{rank}" for rank in range(self._world)]))

    def greetings(self) -> dict[int, dict[str, Any]]:
        """Facts of the ranks that have called `attach` so far."""
        present = [rank for rank in range(self._world) if self._store.check([f"hello/{rank}"])]
        return {rank: json.loads(self._store.get(f"hello/{rank}")) for rank in present}

    def publish_run(self, facts: dict[str, Any]) -> None:
        self._store.set("run", json.dumps(facts))

    def run_facts(self) -> dict[str, Any] | None:
        facts: dict[str, Any] | None = json.loads(self._store.get("run")) if self._store.check(["run"]) else None
        return facts

    def send(self, signals: Iterable[LocalSignal], last: bool = False) -> None:
        header = _HEADER.pack(_MAGIC, self._world, self.sent, last)
        self._store.set(f"m/{self._rank}/{self.sent % SLOTS}", header + b"".join(map(pack, signals)))
        self.sent += 1

    def collect(self, ranks: list[int]) -> tuple[dict[int, list[LocalSignal]], int]:
        """New signals of `ranks`, one message each, and how many messages were overwritten before they were read."""
        letters = self._store.multi_get([f"m/{rank}/{self._read[rank] % SLOTS}" for rank in ranks])
        fresh: dict[int, list[LocalSignal]] = {}
        lost = 0
        for rank, letter in zip(ranks, letters, strict=True):
            magic, world, number, last = _HEADER.unpack_from(letter)
            if magic != _MAGIC or number < self._read[rank] or world != self._world:
                continue
            lost += number - self._read[rank]
            self._read[rank] = number + 1
            fresh[rank] = list(unpack(letter[_HEADER.size :]))
            if last:
                self.left.add(rank)
        return fresh, lost

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
