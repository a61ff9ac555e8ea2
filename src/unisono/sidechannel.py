"""The sketches' own road: a gloo group that training does not know of.

Collectives are issued and polled, never waited for. When they go wrong (a rank silent or out of step) the era ends,
and rank 0 announces a new one, with a new group, a few steps ahead.

W = workers, G = layer groups, K = sketch length.
"""

from __future__ import annotations

import atexit
import ctypes
import struct
import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

dist: Any = torch.distributed  # its stores and groups are not in its annotations
PATIENCE = 10.0
"""Seconds after which an unanswered gather ends the era."""

MOST_PENDING_BYTES = 64 << 20
_GLOO_TIMEOUT = timedelta(seconds=60)
_HEADER = struct.Struct("<4sqq?xxx")
_MAGIC = b"uni1"

_graveyard: list[tuple[Any, list[_Gather]]] = []
"""Groups with work still pending: their destructor would wait for it, holding the interpreter's lock."""


def _bury(group: Any, pending: list[_Gather]) -> None:
    _graveyard.append((group, pending))
    _graveyard[:] = [(old, works) for old, works in _graveyard if not all(w.work.is_completed() for w in works)]


@atexit.register
def _keep_past_exit() -> None:
    """One more reference than Python knows of: the end of the process frees a group without waiting for its peers."""
    for group, _ in _graveyard:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


@dataclass(frozen=True, slots=True)
class Payload:
    """One rank's directions at one step; `body` is empty when the rank could not listen."""

    step: int
    window: int
    body: Tensor | None

    def to_bytes(self, size: int) -> Tensor:
        packet = torch.zeros(_HEADER.size + size, dtype=torch.uint8)
        head = _HEADER.pack(_MAGIC, self.step, self.window, self.body is not None)
        packet[: _HEADER.size] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        if self.body is not None:
            packet[_HEADER.size :] = self.body
        return packet

    @classmethod
    def from_bytes(cls, packet: Tensor) -> Payload | None:
        magic, step, window, present = _HEADER.unpack(bytes(packet[: _HEADER.size].tolist()))
        return cls(step, window, packet[_HEADER.size :] if present else None) if magic == _MAGIC else None


@dataclass(slots=True)
class _Gather:
    step: int
    issued: float
    work: Any
    packet: Tensor
    packets_W: list[Tensor]


class SideChannel:
    """One era: a gloo group and the gathers under way in it."""

    def __init__(self, store: Any, rank: int, world: int, body_size: int, era: int, start: int) -> None:
        self.era, self.start = era, start
        self._rank, self._world, self._size = rank, world, body_size
        self._group = dist.ProcessGroupGloo(dist.PrefixStore(f"era/{era}", store), rank, world, _GLOO_TIMEOUT)
        self._pending: deque[_Gather] = deque()

    def send(self, payload: Payload) -> None:
        packet = payload.to_bytes(self._size)
        packets_W = [torch.empty_like(packet) for _ in range(self._world)] if self._rank == 0 else []
        options = dist.GatherOptions()
        options.rootRank = 0
        work = self._group.gather([packets_W] if packets_W else [], [packet], options)
        self._pending.append(_Gather(payload.step, time.monotonic(), work, packet, packets_W))

    def poll(self) -> list[tuple[int, list[Payload | None]]]:
        """Steps whose gather is complete; on ranks other than 0 without payloads. Raises when a gather failed."""
        done = []
        while self._pending and self._pending[0].work.is_completed():
            gather = self._pending.popleft()
            gather.work.wait()
            done.append((gather.step, [Payload.from_bytes(packet) for packet in gather.packets_W]))
        return done

    @property
    def idle(self) -> bool:
        return not self._pending

    def stuck(self) -> bool:
        if not self._pending:
            return False
        too_many = len(self._pending) * self._world * self._size > MOST_PENDING_BYTES and self._rank == 0
        return too_many or time.monotonic() - self._pending[0].issued > PATIENCE

    def end(self) -> None:
        """Lets the group go if nothing is under way in it, else keeps it to the end of the process."""
        if self._pending:
            _bury(self._group, list(self._pending))
        self._pending.clear()
        del self._group
