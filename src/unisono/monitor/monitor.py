"""Puts one model's listening together: step tracker, exchange, rank 0's part, run file, and the end of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from unisono.act.guard.hooks import GuardHooks
from unisono.act.guard.reporter import Reporter
from unisono.act.steering.steering import Steering
from unisono.common.console import Console
from unisono.exchange.departures import Departures
from unisono.exchange.gloo_channel import GlooChannel, most_pending
from unisono.exchange.last_word import LastWord
from unisono.exchange.rank_facts import compared_model, compared_settings, own_facts
from unisono.exchange.reconnect import ReconnectingChannel
from unisono.exchange.store import MessageStore, StoreConnections, enter_together, wait_for_registrations
from unisono.exchange.thread import ExchangeThread
from unisono.exchange.wait_for_end import FAREWELL
from unisono.exchange.watch_rank0 import WatchRank0
from unisono.listen import torch_patches
from unisono.listen.evidence.collector import EvidenceCollector
from unisono.listen.evidence.weight_prints import WeightPrints
from unisono.listen.gradient_reader import GradientReader
from unisono.listen.listening_plan import ListeningPlan
from unisono.listen.models.ddp import DDPWrapper
from unisono.listen.models.wrapper import Wrapper
from unisono.listen.step_tracker import StepTracker
from unisono.listen.validation import Validation
from unisono.measure.rank0 import Rank0
from unisono.monitor import exit_hooks
from unisono.monitor.last_steps import LastSteps, last_word, signalled
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unisono.monitor.noted_exit import exit_since
from unisono.monitor.run_recorder import RunRecorder
from unisono.monitor.settings import Settings
from unisono.records import DecisionRecord, DepartureRecord
from unisono.records.departure_order import in_words
from unisono.records.finding import Finding
from unisono.show.sinks.feed import Feed

RING = 1_000
LAST_WORD_SECONDS = 1.0
"""For a last word over a store that may not answer."""

CRASH_PATIENCE = 1.0
"""Seconds for others' last messages when this rank has failed: its launcher waits to hear of it."""


class Monitor:
    """Listens to one model on this rank until it is closed. Also a context manager."""

    def __init__(self, wrapper: Wrapper, settings: Settings, nth: int, steering: Steering | None = None) -> None:
        first_step = settings.first_step
        ranks = wrapper.ranks()
        self.rank = ranks.index(dist.get_rank()) if len(ranks) > 1 else 0
        self.world = len(ranks)
        self.closed = False
        self._wrapper, self._steering = wrapper, steering
        self._guard_hooks: GuardHooks | None = None
        self._validated: int | None = None
        """The step of the last number that `record_validation` was given."""

        self._console = Console("unisono" if self.rank == 0 else f"unisono: rank {ranks[self.rank]}")
        self._reader = GradientReader(wrapper.named_parameters(), self.world)
        if self._reader.trouble:
            self._console.complain(
                f"the GPU kernels do not run ({self._reader.trouble}); torch reads the gradients instead, more slowly. "
                "Triton needs a C compiler and a folder to write to (TRITON_CACHE_DIR)"
            )
        self._global_rank = ranks[self.rank]
        self._last_steps = LastSteps(self._global_rank, RING)
        self._pid = os.getpid()
        # The collector lets go of the user's loader after the first step; so do we.
        self._settings = replace(settings, loader=None)
        self._log = self._open_log(ranks) if self.rank == 0 else None
        self._exchange = self._make_exchange(wrapper, ListeningPlan(settings.schedule, first_step), ranks, nth)
        # One worker's gradient is the mean of all.
        share = self._reader.share_of(self.rank, self.world) if self.world > 1 else None
        plan, submit, complain = self._exchange.plan, self._exchange.submit, self._console.complain
        weight_prints = WeightPrints(self._reader.names, self._reader.parameters)
        self._evidence = EvidenceCollector(
            wrapper,
            weight_prints,
            self._reader.device,
            plan,
            complain,
            lambda: compared_model(self._reader, wrapper),
            settings.loader,
        )
        self._tracker = StepTracker(
            wrapper, self._reader, self._evidence, share, plan, submit, complain, first_step, steering
        )
        self._exchange.backward_since = lambda: self._tracker.backward_since
        self.reporter = Reporter(self._log, self._console, lambda: self._tracker.step)
        torch_patches.connect(self._tracker)
        torch_patches.connect(self._evidence)
        self._exchange.start()
        atexit.register(self._close_at_exit)
        # A process that `multiprocessing` has forked ends without what is registered there.
        self._forked_ends = Finalize(None, self._close_at_exit, exitpriority=0) if parent_process() else None
        exit_hooks.on_exit(self._process_ends)

    def wrapped_again(self, model: DistributedDataParallel) -> bool:
        """Whether this monitor goes on with another wrapper around the same parameters."""
        wrapper = self._wrapper
        if self.closed or not isinstance(wrapper, DDPWrapper) or wrapper.is_model(model) or self._steering is not None:
            return False
        anew = DDPWrapper(model)
        held = [id(parameter) for _, parameter in anew.named_parameters()]
        if anew.ranks() != wrapper.ranks() or held != [id(parameter) for parameter in self._reader.parameters]:
            return False
        wrapper.wrap_again(model)
        return True

    @property
    def run_dir(self) -> str | None:
        """Where the run is written; known on rank 0 at once, elsewhere when rank 0 has said it."""
        facts = self._exchange.run_facts
        return None if facts is None else facts["run_dir"]

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, the leading one first. Known on rank 0."""
        return [] if self._log is None else list(self._log.diagnosis.findings)

    @property
    def decisions(self) -> list[DecisionRecord]:
        """What the guard has decided so far: the same list on every rank."""
        return [] if self._guard_hooks is None else self._guard_hooks.decisions

    def guarded_by(self, guard_hooks: GuardHooks) -> None:
        self._guard_hooks = self._tracker.guarded_by = guard_hooks

    def restore(self) -> int | None:
        """Puts back the newest healthy checkpoint of this run, on all ranks; its step, or None where there is none.

        Call it on every rank before the first step. Steps are numbered on from there.
        """
        step = None if self._guard_hooks is None else self._guard_hooks.restore()
        if step is not None:
            self._tracker.step = step + 1
            self._evidence.step_is(step + 1)
        return step

    def record_loss(self, loss: Any) -> Any:
        """Takes note of the local loss and hands it back untouched. Never synchronises."""
        self._tracker.record_loss(loss)
        if self._guard_hooks is not None:
            self._guard_hooks.own.record_loss(loss)
        return loss

    def record_validation(self, accuracy: Any) -> None:
        """Takes note of how good the model is on data that it does not train on. Never synchronises, never raises.

        Call it after each validation, on rank 0 or on every rank: rank 0's number counts, so reduce it first where the
        ranks share the validation data. A second number at the same step is not kept.

        :param accuracy: A number or a tensor with one; more is better, so hand over `-loss` where there is only a loss.
        """
        step = self._tracker.step - 1
        if self.closed or os.getpid() != self._pid or step == self._validated:
            return
        try:
            if self._tracker.capturing():
                return
            self._exchange.submit_validation(Validation(step, accuracy))
            self._validated = step
        except Exception as error:
            self._console.complain(
                f"`record_validation` failed ({type(error).__name__}: {error}); training is not affected. "
                "Hand over one number, such as the accuracy"
            )

    def step(self) -> None:
        """Marks the end of a step where no torch optimizer does."""
        self._tracker.step_ended()
        if self._steering is not None:
            self._steering.step_ended()
        if self._guard_hooks is not None:
            self._guard_hooks.step_ended()

    def close(self) -> None:
        """Stops listening, writes down what is still on its way, and says goodbye. Safe to call twice."""
        self._close(sys.exc_info()[1])

    def _close_at_exit(self) -> None:
        said = self._exchange.last_word
        error = sys.exc_info()[1]
        self._close(error, exits=True)
        if said is not None and said.ended == "finished":
            # Its model was gone before the process failed.
            self.tell_of_bad_exit(error)

    def _close(self, error: BaseException | None, exits: bool = False) -> None:
        """:param error: The one that leads through this call, as in a `finally` block."""
        if os.getpid() != self._pid:
            return
        self._stop_listening()
        error = exit_hooks.uncaught() or error
        word = last_word(error, exits, self._tracker.backward_error, self._exchange.trained_until)
        going = word.ended != "finished"
        if going:
            # Something at once; later once more, with steps that the listening thread has not taken over yet.
            self._exchange.leave(word, CRASH_PATIENCE)
            self._last_steps.try_to_write(self._exchange)
        self._exchange.close(word, CRASH_PATIENCE if going else FAREWELL)
        if going:
            self._last_steps.try_to_write(self._exchange)
        exit_hooks.forget(self._process_ends)
        atexit.unregister(self._close_at_exit)
        if self._forked_ends is not None:
            self._forked_ends.cancel()

    def tell_of_bad_exit(self, error: BaseException | None = None) -> None:
        """Called at the end of a process whose listening has ended before, with its model or the process group."""
        word = last_word(exit_hooks.uncaught() or error, True, "", self._exchange.trained_until)
        if os.getpid() != self._pid or word.ended == "finished" or self._exchange.run_facts is None:
            return
        departure = self._last_steps.own_departure(self._exchange, word)
        if self._log is not None:
            self._log.amend_end(word, departure)
        else:
            self._last_steps.tell(self._exchange, [departure])

    def _process_ends(self, reason: str) -> Callable[[float], None] | None:
        """Called in the last moment of a process, perhaps from another thread while training still waits."""
        dies = reason == exit_hooks.SIGTERM
        if dies:
            self._exchange.leave(signalled(), exit_hooks.PATIENCE / 4)
        self._last_steps.try_to_write(self._exchange)
        return self._exchange.join if dies else None

    def retire(self) -> None:
        """The model is gone. Called while Python collects garbage: nothing may be waited for, no thread started."""
        if os.getpid() == self._pid:
            self._stop_listening()
            # Where a script leaves by `sys.exit`, its model goes before the interpreter does.
            trained_until = self._exchange.trained_until
            leaves = exit_since(trained_until) is not None
            self._exchange.leave(last_word(None, True, "", trained_until) if leaves else None)

    def _stop_listening(self) -> None:
        if not self.closed:
            self.closed = True
            torch_patches.disconnect(self._evidence)
            torch_patches.disconnect(self._tracker)
            for let_go in (self._tracker.close, self._evidence.close, self._reader.release):
                with contextlib.suppress(Exception):
                    let_go()
            if self._guard_hooks is not None:
                self._guard_hooks.leave()

    def _finished(self) -> None:
        """The listening thread's last act."""
        self._stores.let_go()
        if self._log is not None:
            self._log.close(self._exchange.lost, self._exchange.last_word)

    def _deaf(self, word: LastWord, closing: bool) -> None:
        """The listening thread has died or stands still. Called on the training thread, or by who closes it."""
        self._console.complain(
            f"rank {self._global_rank} has not been heard since step {word.unheard_since} (unisono's own thread "
            "has ended or stands still); training is not affected"
        )
        with contextlib.suppress(Exception):
            if self._log is not None:
                self._log.note_deaf(self._global_rank, word, closing)
            elif closing:
                # The store may be what the thread stands still in.
                say = threading.Thread(target=self._say_last_word, args=(word,), name="unisono-last-word", daemon=True)
                say.start()
                say.join(LAST_WORD_SECONDS)
        if closing:
            self._stores.let_go()

    def _say_last_word(self, word: LastWord) -> None:
        with contextlib.suppress(Exception), self._stores.for_waiting() as store:
            self._exchange.message_store.last_word_over(store, word)

    def _departed(self, departures: list[DepartureRecord]) -> None:
        """Rank 0 has gone, and it cannot say so any more."""
        if departures:
            self._last_steps.tell(self._exchange, departures)
            if self.rank == 1:
                for departure in departures:
                    self._console.complain(in_words(departure))

    def _rank0_is_back(self) -> None:
        self._last_steps.take_back_silence(self._exchange)
        if self.rank == 1:
            self._console.complain("the rank that had fallen silent gives signs of life again")

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(error)

    def _open_log(self, ranks: list[int]) -> RunRecorder:
        settings = self._settings
        feed = Feed(settings.sinks, self._console)
        diagnosis = LiveDiagnosis(self._console, settings.ignore, settings.on_finding, feed)
        return RunRecorder(settings.run_dir, ranks, settings.first_step, self._console, diagnosis, feed)

    def _make_rank0(self, wrapper: Wrapper, ranks: list[int]) -> Rank0 | None:
        log = self._log
        if log is None:
            return None
        said = (log.write, log.met, log.diagnosis, wrapper.plain_mean, self._console.complain)
        return Rank0(ranks, log.attempt, self._reader.layout, *said, self._settings.first_step)

    def _make_exchange(self, wrapper: Wrapper, plan: ListeningPlan, ranks: list[int], nth: int) -> ExchangeThread:
        self._stores = stores = StoreConnections(ranks, nth)
        layout = self._reader.layout

        def connect(era: int, start: int, given_up: threading.Event) -> GlooChannel:
            with stores.for_waiting() as store:
                wait_for_registrations(store, self.world, given_up)
                enter_together(store, era, self.world, given_up)
                return GlooChannel(store, self.rank, self.world, layout.size, era, start)

        rank0 = self._make_rank0(wrapper, ranks)
        quiet = self._console.complain if rank0 is not None else _silence
        channel = ReconnectingChannel(connect, quiet, most_pending(self.world, layout.size))
        if self.world > 1:
            channel.begin(0, self._settings.first_step)
        message_store = MessageStore(stores.for_messages, self.rank, self.world)
        departures = Departures(ranks, self.rank, 0 if self._log is None else self._log.attempt)
        facts = own_facts(self._global_rank, self._reader) | {
            "steering": "" if self._steering is None else str(self._steering),
            "guard": self._settings.guard,
            "settings": compared_settings(self._settings.schedule, self.world),
            "model": compared_model(self._reader, wrapper),
        }
        return ExchangeThread(
            message_store,
            channel,
            plan,
            layout,
            facts,
            None if self._log is None else self._log.facts_for_others(),
            keep=self._last_steps.steps.append,
            complain=quiet,
            rank0=rank0,
            write_last_steps=lambda: self._last_steps.write(self._exchange),
            finished=self._finished,
            departures=departures,
            watch=WatchRank0(message_store, departures, self._departed, self._rank0_is_back),
            deaf=self._deaf,
        )


def _silence(text: str) -> None:
    """Troubles of the side channel are told by rank 0 alone."""


class NullMonitor:
    run_dir = None
    closed = True

    @property
    def findings(self) -> list[Any]:
        return []

    @property
    def decisions(self) -> list[Any]:
        return []

    def restore(self) -> None:
        """Nothing was kept."""

    def record_loss(self, loss: Any) -> Any:
        return loss

    def record_validation(self, accuracy: Any) -> None:
        """Nothing listens."""

    def step(self) -> None:
        """Nothing listens."""

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> NullMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""
