"""Sketches go through a gloo group that training does not know of.

Collectives are issued and polled, never waited for. When they go wrong (a rank silent or out of step) the era ends,
and rank 0 announces a new one, with a new group, a few steps ahead.

W = workers, P = bytes of a packet, B = those of its body.
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
_SENT = 20
"""Where the header says whether there is a body."""


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


def most_pending(world: int, size: int) -> int:
    """Gathers that rank 0 may have under way at once."""
    return max(1, MOST_PENDING_BYTES // (world * size))


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


@dataclass(frozen=True, slots=True)
class Payloads:
    """All ranks' directions at one step."""

    body_WB: Tensor
    sent_W: Tensor
    """Whether the rank could listen; its body says nothing otherwise."""

    @classmethod
    def from_packets(cls, packets_WP: Tensor) -> Payloads | None:
        """`None` where the ranks do not all speak of the same step and window."""
        head_WP, body_WB = packets_WP.split([_HEADER.size, packets_WP.shape[1] - _HEADER.size], 1)
        magic, _, _, _ = _HEADER.unpack(bytes(head_WP[0].tolist()))
        same = bool((head_WP[:, :_SENT] == head_WP[0, :_SENT]).all())
        return cls(body_WB, head_WP[:, _SENT] != 0) if same and magic == _MAGIC else None


@dataclass(slots=True)
class _Gather:
    step: int
    issued: float
    work: Any
    packet: Tensor
    packets_WP: Tensor | None


class GlooChannel:
    """One era: a gloo group and the gathers under way in it."""

    def __init__(self, store: Any, rank: int, world: int, body_size: int, era: int, start: int) -> None:
        self.era, self.start = era, start
        self._rank, self._world, self._size = rank, world, body_size
        self._group = dist.ProcessGroupGloo(dist.PrefixStore(f"era/{era}", store), rank, world, _GLOO_TIMEOUT)
        self._pending: deque[_Gather] = deque()

    def send(self, payload: Payload) -> None:
        packet = payload.to_bytes(self._size)
        packets_WP = packet.new_empty(self._world, len(packet)) if self._rank == 0 else None
        options = dist.GatherOptions()
        options.rootRank = 0
        into = [] if packets_WP is None else [list(packets_WP.unbind())]
        work = self._group.gather(into, [packet], options)
        self._pending.append(_Gather(payload.step, time.monotonic(), work, packet, packets_WP))

    def poll(self) -> list[tuple[int, Tensor | None]]:
        """Steps whose gather is complete; on ranks other than 0 without packets. Raises when a gather failed."""
        done = []
        while self._pending and self._pending[0].work.is_completed():
            gather = self._pending.popleft()
            gather.work.wait()
            done.append((gather.step, gather.packets_WP))
        return done

    @property
    def idle(self) -> bool:
        return not self._pending

    def stuck(self) -> bool:
        if not self._pending:
            return False
        too_many = self._rank == 0 and len(self._pending) > most_pending(self._world, self._size)
        return too_many or time.monotonic() - self._pending[0].issued > PATIENCE

    def end(self) -> None:
        """Lets the group go if nothing is under way in it, else keeps it to the end of the process."""
        if self._pending:
            _bury(self._group, list(self._pending))
        self._pending.clear()
        del self._group
