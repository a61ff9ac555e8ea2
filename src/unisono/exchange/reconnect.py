"""Opens, uses and replaces side channels: one era after the other, never waiting for one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

from unisono.exchange.gloo_channel import GlooChannel, Payload
from unisono.exchange.store import RankLeft

MOST_HELD = 256
PARTING = 5.0
"""Seconds for which a connection that nobody waits for any more may come to its end: all ranks are in it, or none."""

GIVING_UP = 0.5
"""Seconds for the same where a listening thread is left behind."""

NETWORK = "Set GLOO_SOCKET_IFNAME to the network interface that joins your hosts"

OpenChannel = Callable[[int, int, threading.Event], GlooChannel]
"""From era, first step, and whether it has been given up."""


class ReconnectingChannel:
    """
    :param most_held: Payloads that may wait for a channel to open: no more than may be under way in it.
    """

    def __init__(self, open_channel: OpenChannel, complain: Callable[[str], None], most_held: int = MOST_HELD) -> None:
        self._open_channel, self._complain = open_channel, complain
        self._most_held = min(most_held, MOST_HELD)
        self._channel: GlooChannel | None = None
        self._opening: _Opening | None = None
        self._parting: list[_Opening] = []
        """Connections that nobody waits for any more, and that have not come to their end."""

        self._held: deque[Payload] = deque()
        self.era = -1
        self.broken = False

    @property
    def idle(self) -> bool:
        return self._opening is None and (self._channel is None or self._channel.idle)

    def begin(self, era: int, start: int) -> None:
        """Leaves the current era for one that begins at step `start`."""
        self.end()
        self.era, self.broken = era, False
        self._opening = _Opening(self._open_channel, era, start)

    def send(self, payload: Payload) -> bool:
        """Whether the payload is on its way or held until the channel has opened."""
        if self._opening is not None:
            return self._hold(payload, self._opening.begins_at)
        if self._channel is None or payload.step < self._channel.start:
            return False
        self._channel.send(payload)
        return True

    def turn(self) -> list[tuple[int, Tensor | None]]:
        """Steps whose directions have arrived, as packets. A channel that fails or stands still is given up."""
        self._finish_opening()
        if self._channel is None:
            return []
        try:
            done = self._channel.poll()
            stuck = self._channel.stuck()
        except RuntimeError:
            done, stuck = [], True
        if stuck:
            self.break_off()
        return done

    def break_off(self) -> None:
        self.end()
        self.broken = True

    def end(self) -> None:
        """Leaves the current era at once."""
        if self._channel is not None:
            self._channel.end()
        self._parting = [opening for opening in self._parting if opening.is_alive()]
        if self._opening is not None:
            self._opening.given_up.set()
            self._parting.append(self._opening)
        self._channel = None
        self._opening = None
        self._held.clear()

    def give_up(self) -> None:
        """Called by who leaves the thread behind that uses this channel; what is on its way gets a moment to end."""
        if (opening := self._opening) is not None:
            opening.given_up.set()
            opening.join(GIVING_UP)

    def close(self) -> None:
        """Waits for connections on their way: one that comes back while the interpreter ends aborts the process."""
        self.end()
        deadline = time.monotonic() + PARTING
        for opening in self._parting:
            opening.join(max(0.0, deadline - time.monotonic()))

    def _hold(self, payload: Payload, begins_at: int) -> bool:
        if payload.step < begins_at:
            return False
        self._held.append(payload)
        if len(self._held) > self._most_held:
            self.break_off()
        return not self.broken

    def _finish_opening(self) -> None:
        opening = self._opening
        if opening is None or opening.is_alive():
            return
        self._opening = None
        if opening.channel is None:
            self._tell(opening.error)
            self.broken = True
            self._held.clear()
            return
        self._channel = opening.channel
        while self._held:
            self.send(self._held.popleft())

    def _tell(self, error: Exception | None) -> None:
        """Not of a rank whose job has ended. A rank that did not come says nothing about the network."""
        if isinstance(error, RankLeft):
            return
        network = "" if isinstance(error, TimeoutError) else f". {NETWORK}"
        self._complain(f"workers could not be connected ({error}); going on without gradient directions{network}")


class _Opening(threading.Thread):
    """Connecting waits for all ranks, so it has a thread of its own."""

    def __init__(self, open_channel: OpenChannel, era: int, start: int) -> None:
        super().__init__(name="unisono-connect", daemon=True)
        self.begins_at = start
        self.channel: GlooChannel | None = None
        self.error: Exception | None = None
        self._open_channel, self._era = open_channel, era
        self.given_up = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self.channel = self._open_channel(self._era, self.begins_at, self.given_up)
        except Exception as error:
            self.error = error
