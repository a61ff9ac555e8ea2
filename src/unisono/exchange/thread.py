"""The listening thread of one rank: the only place where it exchanges anything with others.

Small numbers go through the job's store, sketches through a gloo group of our own. The training thread hands over
a step and goes on; nothing here can make it wait. Troubles degrade to what this rank knows alone, and are retried.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from unisono.common.backoff import Backoff
from unisono.exchange.evidence_messages import EvidenceMessages
from unisono.exchange.gloo_channel import Payload
from unisono.exchange.reconnect import ReconnectingChannel
from unisono.exchange.store import Message, MessageStore
from unisono.listen.handover import Handover
from unisono.listen.listening_plan import Announcement, ListeningPlan
from unisono.listen.messages import RankStep
from unisono.listen.validation import Validation
from unisono.sketch.wire_format import WireFormat

TURN, UNHURRIED = 0.02, 0.1
"""Seconds from turn to turn, with gradients on their way and without: each takes Python's lock from training."""

HURRY = 8
"""Steps that may wait for the next turn: fewer than there are buffers for readings in a model with such short steps."""

UNASKED = 0.25
"""Seconds between looks at the store while nothing is under way."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds after a failure, twice as long after each further one."""

SIGN_OF_LIFE = 1.0
"""Seconds after which a rank posts an empty message."""

LONGEST_QUEUE, LONGEST_OUTBOX = 256, 1_000
FAREWELL = 6.0
"""Seconds for what is still on its way at the end; longer than the 5 s that a name server may hold the store up."""


class Rank0Part(Protocol):
    """What rank 0 does beside the others' work."""

    def turn(self, exchange: ExchangeThread) -> None: ...
    def gathered(self, step: int, packets_WP: Tensor) -> bool:
        """Whether all ranks spoke of the same step."""

    def awaits(self, step: int) -> None: ...
    def directions_lost(self) -> None: ...
    def finish(self, exchange: ExchangeThread, deadline: float) -> None: ...


class ExchangeThread:
    def __init__(
        self,
        message_store: MessageStore,
        channel: ReconnectingChannel,
        plan: ListeningPlan,
        layout: WireFormat,
        facts: dict[str, Any],
        run_facts: dict[str, Any] | None,
        keep: Callable[[RankStep], None],
        complain: Callable[[str], None],
        rank0: Rank0Part | None,
        write_last_steps: Callable[[], None],
        finished: Callable[[], None],
    ) -> None:
        self.message_store, self.channel, self.plan = message_store, channel, plan
        self.complain = complain
        self.lost = 0
        self.newest = -1
        """The last step this rank has finished."""

        self.run_facts = run_facts
        """Where the run is written; rank 0 tells the others."""

        self._layout, self._facts, self._keep, self._rank0 = layout, facts, keep, rank0
        self._write_last_steps, self._finished = write_last_steps, finished
        self._evidence_messages, self._patience = EvidenceMessages(), FAREWELL
        self._queue: deque[Handover] = deque()
        self._validations: deque[Validation] = deque(maxlen=LONGEST_QUEUE)
        self._outbox: deque[RankStep] = deque(maxlen=LONGEST_OUTBOX)
        self._messages: deque[Message] = deque(maxlen=LONGEST_OUTBOX)
        self._posted = self._looked = self._asked = 0.0
        self._greeted = False
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._closing, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="unisono", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, handover: Handover) -> None:
        """Called on the training thread."""
        self.newest = handover.step
        if len(self._queue) >= LONGEST_QUEUE:
            self.lost += 1
            handover.discard()
            return
        self._queue.append(handover)
        if len(self._queue) == HURRY:
            self._wake.set()

    def submit_validation(self, validation: Validation) -> None:
        """Called on the training thread."""
        self._validations.append(validation)

    def leave(self, patience: float = FAREWELL) -> None:
        """Lets the thread say goodbye, without waiting for it."""
        self._patience = patience
        self._closing.set()
        self._wake.set()

    def close(self, patience: float = FAREWELL) -> None:
        """Says goodbye and waits for the thread, a few seconds at most."""
        self.leave(patience)
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * patience)

    def _run(self) -> None:
        while not self._ends_while_resting():
            self._try(self._turn)
        self._try(self._finish)
        self._try(self._finished)

    def _ends_while_resting(self) -> bool:
        busy = self._queue or not self.channel.idle or self.plan.hears(self.newest + 1)
        self._wake.wait(TURN if busy else UNHURRIED)
        self._wake.clear()
        return self._closing.is_set()

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._backoff.succeeded()
        except Exception as error:
            self.complain(f"the side channel failed ({type(error).__name__}: {error}); training is not affected")
            # A store that is gone stays gone, and torch writes a page about each try.
            self._closing.wait(self._backoff.failed())

    def _turn(self) -> None:
        self._open_handovers()
        self._register()
        if self._post() or self._nothing_for_long():
            self._hear_announcements()
            self._looked = time.monotonic()
        self.exchange_directions()
        if self._rank0 is not None:
            self._rank0.turn(self)

    def _nothing_for_long(self) -> bool:
        return time.monotonic() - self._looked > max(UNASKED, self.message_store.pace)

    def _register(self) -> None:
        if not self._greeted:
            self.message_store.register(self._facts)
            self._greeted = True
            if self.run_facts is not None:
                self.message_store.publish_run(self.run_facts)
        if self.run_facts is None and time.monotonic() - self._asked >= self.message_store.pace:
            self._asked = time.monotonic()
            self.run_facts = self.message_store.run_facts()

    def _open_handovers(self) -> None:
        while self._queue and self._queue[0].ready():
            handover = self._queue.popleft()
            try:
                signal, messages = self._testify(handover)
                self._keep(signal)
                self._outbox.append(signal)
                self._messages += messages
                if handover.due:
                    self._send_directions(handover, signal)
            finally:
                handover.discard()
        self._open_validations()

    def _open_validations(self) -> None:
        while self._validations and self._validations[0].ready():
            self._messages.append(self._validations.popleft().message())

    def _testify(self, handover: Handover) -> tuple[RankStep, list[Message]]:
        """Evidence that cannot be read must not cost the step's own numbers."""
        try:
            return self._evidence_messages.take(handover)
        except Exception as error:
            self.complain(f"evidence could not be read ({type(error).__name__}: {error}); training is not affected")
            return handover.signal(), []

    def _send_directions(self, handover: Handover, signal: RankStep) -> None:
        body = None
        if handover.readout is None:
            self.lost += 1
        else:
            body = handover.readout.directions(self._layout, handover.unscale()) if signal.nonfinite == 0 else None
        # A rank that could not listen still takes its turn, or the others' gathers would never match again.
        if self.channel.send(Payload(handover.step, handover.window, body)) and self._rank0 is not None:
            self._rank0.awaits(handover.step)

    def _post(self, last: bool = False) -> bool:
        now = time.monotonic()
        something = bool(self._outbox or self._messages) and now - self._posted >= self.message_store.pace
        posting = something or last or now - self._posted > SIGN_OF_LIFE
        if posting:
            self.message_store.send(self._outbox, list(self._messages), last)
            self._outbox.clear()
            self._messages.clear()
            self._posted = now
        return posting

    def _hear_announcements(self) -> None:
        for announcement in self.message_store.announcements():
            self.take(announcement)

    def take(self, announcement: Announcement) -> None:
        self.plan.apply(announcement)
        if announcement.era is not None:
            self.channel.begin(announcement.era, announcement.start)
        if announcement.keep:
            self._write_last_steps()
        self._messages += self._answers(announcement)

    def _answers(self, announcement: Announcement) -> list[Message]:
        """What this rank remembers of what it is asked for."""
        answers = []
        if announcement.audit_of is not None:
            answers.append(self._evidence_messages.audit_of(announcement.audit_of))
        if announcement.batch_of is not None and announcement.worker == self.message_store.rank:
            answers.append(self._evidence_messages.batch_of(announcement.batch_of, self._facts["rank"]))
        return [answer for answer in answers if answer is not None]

    def exchange_directions(self) -> None:
        for step, packets_WP in self.channel.turn():
            if self._rank0 is not None and packets_WP is not None and not self._rank0.gathered(step, packets_WP):
                self.channel.break_off()
        if self.channel.broken and self._rank0 is not None:
            self._rank0.directions_lost()

    def _finish(self) -> None:
        deadline = time.monotonic() + self._patience
        self._open_handovers()
        # The last steps may still be on their way from a GPU.
        while (self._queue or self._validations) and time.monotonic() < deadline:
            time.sleep(TURN / 4)
            self._open_handovers()
        self._register()
        self._messages += self._evidence_messages.last_messages()
        self._post(last=True)
        if self._rank0 is not None:
            self._rank0.finish(self, deadline)
        while not self.channel.idle and time.monotonic() < deadline:
            self.exchange_directions()
            time.sleep(TURN / 4)
        self.channel.end()
