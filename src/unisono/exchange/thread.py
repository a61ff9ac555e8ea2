"""The listening thread of one rank: the only place where it exchanges anything with others.

Small numbers go through the job's store, sketches through a gloo group of our own. The training thread hands over
a step and goes on; nothing here can make it wait. Troubles degrade to what this rank knows alone, and are retried.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from unisono.common.backoff import Backoff
from unisono.exchange.departures import Departures
from unisono.exchange.evidence_messages import EvidenceMessages
from unisono.exchange.gloo_channel import Payload
from unisono.exchange.last_word import LastWord
from unisono.exchange.reconnect import PARTING, ReconnectingChannel
from unisono.exchange.store import Message, MessageStore
from unisono.exchange.wait_for_end import FAREWELL, wait_for_end
from unisono.exchange.watch_rank0 import WatchRank0
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
STANDS_STILL = 10.0
"""Seconds of one turn after which the listening thread counts as stuck, while the job trains."""

LAST_DIRECTIONS = 2.0
"""Seconds for directions that rank 0 has not taken over yet at the end."""

WORKING, FINISHING, PARTED, LEFT_BEHIND = "working", "finishing", "parted", "left behind"
"""What the listening thread is at; once it has parted, all that it had to say is said."""

GOING = ("exception", "signal")
"""Last words of a rank that goes before its job is over."""


class Rank0Part(Protocol):
    """What rank 0 does beside the others' work."""

    def turn(self, exchange: ExchangeThread) -> None: ...
    def gathered(self, step: int, packets_WP: Tensor) -> bool:
        """Whether all ranks spoke of the same step."""

    def heard_again(self) -> None:
        """Its own thread, which had stood still."""

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
        departures: Departures,
        watch: WatchRank0,
        deaf: Callable[[LastWord, bool], None],
    ) -> None:
        self.message_store, self.channel, self.plan = message_store, channel, plan
        self.complain = complain
        self.departures, self._watch, self._deaf = departures, watch, deaf
        self.last_word: LastWord | None = None
        self.backward_since: Callable[[], float | None] = lambda: None
        """When the backward pass began in which training is, if it is in one."""

        self.lost = 0
        self.newest = -1
        """The last step this rank has finished."""

        self.trained_until = 0.0
        """When that was."""

        self.run_facts = run_facts
        """Where the run is written; rank 0 tells the others."""

        self._layout, self._facts, self._keep, self._rank0 = layout, facts, keep, rank0
        self._write_last_steps, self._finished = write_last_steps, finished
        self._evidence_messages, self._patience = EvidenceMessages(), FAREWELL
        self._queue: deque[Handover] = deque()
        self._validations: deque[Validation] = deque(maxlen=LONGEST_QUEUE)
        self._outbox: deque[RankStep] = deque(maxlen=LONGEST_OUTBOX)
        self._messages: deque[Message] = deque(maxlen=LONGEST_OUTBOX)
        self._posted = self._looked = self._asked = self._sign_at = 0.0
        self._turned = -1
        """The newest step when the last whole turn began."""

        self._working_since: float | None = None
        self._done = self._said_deaf = False
        self._greeted = False
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._phase = WORKING
        self._closing, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="unisono", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, handover: Handover) -> None:
        """Called on the training thread, which is the only one that could notice the end of ours."""
        self.newest, self.trained_until = handover.step, handover.time
        if not self._said_deaf and (self._has_died() or self._stands_still(STANDS_STILL)):
            self._say_deaf()
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

    def leave(self, word: LastWord | None = None, patience: float = FAREWELL) -> None:
        """Lets the thread say its last word, without waiting for it. The first one counts."""
        if self.last_word is None:
            self.last_word, self._patience = word or LastWord(), patience
        self._closing.set()
        self._wake.set()

    def close(self, word: LastWord | None = None, patience: float = FAREWELL) -> None:
        """Says the last word and waits for the thread, a few seconds at most."""
        self.leave(word, patience)
        if threading.current_thread() is self._thread:
            return
        patience_of = {WORKING: patience, FINISHING: patience + 1.0, PARTED: PARTING + 1.0}
        wait_for_end(self._thread, lambda: self._phase, patience_of, WORKING)
        if self._has_died():
            self._take_over()
        elif self._thread.is_alive():
            self._leave_behind()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _leave_behind(self) -> None:
        """It ends as soon as it is back in Python: one that returns from torch at the end of the process aborts it."""
        has_parted, self._phase, self._done = self._phase == PARTED, LEFT_BEHIND, True
        ident = ctypes.c_ulong(self._thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
        self.channel.give_up()
        if not has_parted:
            self._say_deaf(closing=True)

    def _take_over(self) -> None:
        """Whoever closes a thread that has died does its last work."""
        self.last_word = replace(self.last_word or LastWord(), unheard_since=self._turned + 1)
        self._done = True
        self._try(self._finish)
        self._try(self._finished)
        self.channel.close()

    def _has_died(self) -> bool:
        return self._thread.ident is not None and not self._thread.is_alive() and not self._done

    def _stands_still(self, seconds: float) -> bool:
        since = self._working_since
        return since is not None and time.monotonic() - since > seconds

    def _say_deaf(self, closing: bool = False) -> None:
        self._said_deaf = True
        word = replace(self.last_word or LastWord(), step=self.newest, unheard_since=self._turned + 1)
        self._deaf(word, closing)

    def _run(self) -> None:
        # A program may have a hook that ends it where a thread does not end by itself.
        with contextlib.suppress(SystemExit):
            while not self._ends_while_resting():
                self._try(self._turn)
            self._try(self._finish)
            self._phase = PARTED
            self._try(self._finished)
            self.channel.close()
            self._done = True

    def _ends_while_resting(self) -> bool:
        busy = self._queue or not self.channel.idle or self.plan.hears(self.newest + 1)
        self._wake.wait(TURN if busy else UNHURRIED)
        self._wake.clear()
        return self._closing.is_set()

    def _try(self, work: Callable[[], None]) -> None:
        self._working_since = time.monotonic()
        try:
            work()
            self._working_since = None
            self._backoff.succeeded()
        except Exception as error:
            self._working_since = None
            self.complain(f"the side channel failed ({type(error).__name__}: {error}); training is not affected")
            # A store that is gone stays gone, and torch writes a page about each try.
            self._closing.wait(self._backoff.failed())

    def _turn(self) -> None:
        newest = self.newest
        self._open_handovers()
        self._register()
        if self._post() or self._nothing_for_long():
            self._hear_announcements()
            self._looked = time.monotonic()
        self.exchange_directions()
        if self._rank0 is not None:
            self._give_sign_of_life()
            self._rank0.turn(self)
        else:
            self._watch.turn(self.run_facts, self.newest, self.stalled())
        self._turned = newest
        if self._said_deaf:
            self._said_deaf = False
            if self._rank0 is not None:
                self._rank0.heard_again()

    def stalled(self) -> float:
        """Seconds for which training has waited in one step, for others or for its device."""
        since = self.backward_since()
        waited = 0.0 if since is None else time.monotonic() - since
        if self._queue and not self._queue[0].ready():
            return max(waited, time.time() - self._queue[0].time)
        return waited

    def _give_sign_of_life(self) -> None:
        if time.monotonic() - self._sign_at >= SIGN_OF_LIFE:
            self._sign_at = time.monotonic()
            self.message_store.give_sign_of_life()

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
        while self._is_ready(self._queue):
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
        while self._is_ready(self._validations):
            self._messages.append(self._validations.popleft().message())

    def _is_ready(self, waiting: deque[Any]) -> bool:
        """Whether the first of them is; one that cannot be asked, as after a failure of its device, is given up."""
        try:
            return bool(waiting) and waiting[0].ready()
        except Exception as error:
            self.complain(f"a step could not be read ({type(error).__name__}: {error}); training is not affected")
            waiting.popleft()
            self.lost += 1
            return False

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
            # Rank 0 may want to know who still lives.
            self._posted = 0.0
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
        self._phase = FINISHING
        deadline = time.monotonic() + self._patience
        self._open_handovers()
        # The last steps may still be on their way from a GPU.
        while (self._queue or self._validations) and time.monotonic() < deadline:
            time.sleep(TURN / 4)
            self._open_handovers()
        word = self.last_word = replace(self.last_word or LastWord(), step=self.newest)
        try:
            self._register()
            self._messages += [*self._evidence_messages.last_messages(), word.message()]
            self._post(last=True)
            if self._rank0 is not None:
                self._rank0.finish(self, deadline)
            deadline = min(deadline, time.monotonic() + LAST_DIRECTIONS)
            while not self.channel.idle and time.monotonic() < deadline and not self._in_vain(word):
                self.exchange_directions()
                time.sleep(TURN / 4)
        finally:
            if self._rank0 is None and self._phase != LEFT_BEHIND:
                self._watch.find(self.run_facts, word)

    def _in_vain(self, word: LastWord) -> bool:
        """Nobody takes what is still on its way."""
        return word.how in GOING or self._rank0 is not None or self.message_store.has_ended()
