"""Puts one model's listening together: step tracker, exchange, rank 0's part, run file, and the end of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from unisono.act.guard.hooks import GuardHooks
from unisono.act.guard.reporter import Reporter
from unisono.act.steering.steering import Steering
from unisono.common.console import Console
from unisono.exchange.gloo_channel import GlooChannel
from unisono.exchange.rank_facts import compared_model, compared_settings, own_facts
from unisono.exchange.reconnect import ReconnectingChannel
from unisono.exchange.store import MessageStore, StoreConnections, enter_together, wait_for_registrations
from unisono.exchange.thread import FAREWELL, ExchangeThread
from unisono.listen import torch_patches
from unisono.listen.evidence.collector import EvidenceCollector
from unisono.listen.evidence.weight_prints import WeightPrints
from unisono.listen.gradient_reader import GradientReader
from unisono.listen.listening_plan import ListeningPlan
from unisono.listen.messages import RankStep
from unisono.listen.models.wrapper import Wrapper
from unisono.listen.step_tracker import StepTracker
from unisono.listen.validation import Validation
from unisono.measure.rank0 import Rank0
from unisono.monitor import exit_hooks
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unisono.monitor.run_recorder import RunRecorder, write_rank_file
from unisono.monitor.settings import Settings
from unisono.records import DecisionRecord, LocalStep
from unisono.records.finding import Finding
from unisono.show.sinks.feed import Feed

RING = 1_000
CRASH_PATIENCE = 0.5
"""Seconds for others' last messages when this rank has failed: its launcher waits to hear of it."""


class Monitor:
    """Listens to one model on this rank until it is closed. Also a context manager."""

    def __init__(self, wrapper: Wrapper, settings: Settings, nth: int, steering: Steering | None = None) -> None:
        first_step = settings.first_step
        ranks = wrapper.ranks()
        self.rank = ranks.index(dist.get_rank()) if len(ranks) > 1 else 0
        self.world = len(ranks)
        self.closed = False
        self._steering = steering
        self._guard_hooks: GuardHooks | None = None
        self._validated: int | None = None
        """The step of the last number that `record_validation` was given."""

        self._console = Console("unisono" if self.rank == 0 else f"unisono: rank {ranks[self.rank]}")
        self._ring: deque[RankStep] = deque(maxlen=RING)
        self._reader = GradientReader(wrapper.named_parameters(), self.world)
        if self._reader.trouble:
            self._console.complain(
                f"the GPU kernels do not run ({self._reader.trouble}); torch reads the gradients instead, more slowly. "
                "Triton needs a C compiler and a folder to write to (TRITON_CACHE_DIR)"
            )
        self._global_rank = ranks[self.rank]
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
        self.reporter = Reporter(self._log, self._console, lambda: self._tracker.step)
        torch_patches.connect(self._tracker)
        torch_patches.connect(self._evidence)
        self._exchange.start()
        atexit.register(self.close)
        exit_hooks.on_exit(self._write_last_steps)

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
        if self.closed or os.getpid() != self._pid or step == self._validated or self._tracker.capturing():
            return
        try:
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
        if os.getpid() != self._pid:
            return
        self._stop_listening()
        crashed = exit_hooks.crashed()
        if crashed:
            exit_hooks.speak("crash")
        self._exchange.close(CRASH_PATIENCE if crashed else FAREWELL)
        if crashed:
            # Once more, with the newest steps: the listening thread had not taken them over.
            with contextlib.suppress(Exception):
                self._write_last_steps("crash")
        exit_hooks.forget(self._write_last_steps)
        atexit.unregister(self.close)

    def retire(self) -> None:
        """The model is gone. Called while Python collects garbage: nothing may be waited for, no thread started."""
        if os.getpid() == self._pid:
            self._stop_listening()
            self._exchange.leave()

    def _stop_listening(self) -> None:
        if not self.closed:
            self.closed = True
            torch_patches.disconnect(self._evidence)
            torch_patches.disconnect(self._tracker)
            self._tracker.close()
            self._evidence.close()
            self._reader.release()
            if self._guard_hooks is not None:
                self._guard_hooks.leave()

    def _finished(self) -> None:
        """The listening thread's last act."""
        self._stores.let_go()
        if self._log is not None:
            self._log.close(self._exchange.lost)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_log(self, ranks: list[int]) -> RunRecorder:
        settings = self._settings
        feed = Feed(settings.sinks, self._console)
        diagnosis = LiveDiagnosis(self._console, settings.ignore, settings.on_finding, feed)
        return RunRecorder(settings.run_dir, ranks, settings.first_step, self._console, diagnosis, feed)

    def _make_exchange(self, wrapper: Wrapper, plan: ListeningPlan, ranks: list[int], nth: int) -> ExchangeThread:
        self._stores = stores = StoreConnections(ranks, nth)
        layout = self._reader.layout

        def connect(era: int, start: int, given_up: threading.Event) -> GlooChannel:
            with stores.for_waiting() as store:
                wait_for_registrations(store, self.world, given_up)
                enter_together(store, era, self.world, given_up)
                return GlooChannel(store, self.rank, self.world, layout.size, era, start)

        rank0 = None
        if self._log is not None:
            log, complain = self._log, self._console.complain
            rank0 = Rank0(ranks, log.attempt, layout, log.write, log.met, log.diagnosis, wrapper.plain_mean, complain)
        quiet = self._console.complain if rank0 is not None else _silence
        channel = ReconnectingChannel(connect, quiet)
        if self.world > 1:
            channel.begin(0, self._settings.first_step)
        announce = None if self._log is None else {"run_dir": str(self._log.run_dir), "attempt": self._log.attempt}
        message_store = MessageStore(stores.for_messages, self.rank, self.world)
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
            announce,
            keep=self._ring.append,
            complain=quiet,
            rank0=rank0,
            write_last_steps=lambda: self._write_last_steps("finding"),
            finished=self._finished,
        )

    def _write_last_steps(self, reason: str) -> None:
        facts = self._exchange.run_facts
        if facts is not None:
            steps = [_local(signal, facts["attempt"], self._global_rank) for signal in list(self._ring)]
            write_rank_file(facts["run_dir"], self._global_rank, steps)


def _local(signal: RankStep, attempt: int, rank: int) -> LocalStep:
    norm = None if signal.squared_norm is None else signal.squared_norm**0.5
    return LocalStep(
        attempt=attempt,
        rank=rank,
        step=signal.step,
        time=signal.time,
        loss=signal.loss,
        finite=signal.finite,
        norm=norm,
        compute=signal.compute,
        seconds=signal.seconds,
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
