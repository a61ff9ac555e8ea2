"""What rank 0 leaves behind: the run's directory and file, the lines on stderr, and what the sinks are fed with."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import threading
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from unisono import __version__
from unisono.common.console import Console
from unisono.common.errors import RunFileError, RunInUse
from unisono.common.own_faults import shielded
from unisono.common.terminal import short
from unisono.exchange.last_word import LastWord
from unisono.exchange.processes import own_process
from unisono.measure.evidence_records import facts_record
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unisono.records import (
    FORMAT,
    AttemptRecord,
    DecisionRecord,
    DepartureRecord,
    EndRecord,
    NoteRecord,
    Record,
    RunRecord,
    StepRecord,
    ValidationRecord,
    WorkerFacts,
)
from unisono.records.runfile import RUNS, RunWriter, continue_or_create, new_run_dir, point_latest_at, read_run
from unisono.show.sinks.feed import Feed
from unisono.show.sinks.sink import SinkRun
from unisono.show.text.summary import Summary

SYNC_SECONDS = 1.0


class RunRecorder:
    def __init__(
        self,
        named: str | os.PathLike[str] | None,
        ranks: list[int],
        first_step: int,
        console: Console,
        diagnosis: LiveDiagnosis,
        feed: Feed,
    ) -> None:
        self.run_dir, self._writer = open_writer(choose_run_dir(named, ranks).absolute())
        self.attempt = _next_attempt(self.run_dir)
        if self.run_dir.parent.name == RUNS:
            point_latest_at(self.run_dir)
        self._console, self._first_step, self._ranks = console, first_step, ranks
        self._summary = Summary(len(ranks), ranks)
        self._end: EndRecord | None = None
        self.diagnosis, self._feed = diagnosis, feed
        self._last_step = first_step - 1
        self._synced = time.monotonic()
        self._said_dropped = False
        self._closed = False
        self._lock = threading.Lock()
        if self._writer.needs_header:
            self._writer.write(RunRecord(FORMAT, self.run_dir.name, time.time(), script_name(), __version__))
        feed.start(SinkRun.of(self.run_dir, "" if named else part_of_run(self.run_dir), ranks))

    def met(self, registrations: dict[int, dict[str, Any]]) -> None:
        """The ranks have introduced themselves."""
        own = registrations[0]
        self._summary.guarded = bool(own["guard"])
        self.write(
            AttemptRecord(
                attempt=self.attempt,
                time=time.time(),
                world=len(self._ranks),
                first_step=self._first_step,
                workers=tuple(_worker(rank, registrations.get(worker)) for worker, rank in enumerate(self._ranks)),
                groups=tuple(own["groups"]),
                parameters=own["parameters"],
                sketch_length=own["sketch_length"],
                torch=own["torch"],
                python=own["python"],
                launcher=launcher(),
                steering=own["steering"],
                guard=own["guard"],
                tells_end=True,
            )
        )
        head = {"attempt": self.attempt, "step": self._first_step, "time": time.time()}
        for topic in ("settings", "model"):
            facts_W = [
                registrations[rank][topic] if rank in registrations else None for rank in range(len(self._ranks))
            ]
            self.write(facts_record(head, topic, facts_W))

    def write(self, record: Record) -> None:
        """On the listening thread."""
        with self._lock:
            written, line = self._writer.write(record), self._writer.newest_line
        self.diagnosis.see(record, line)
        if isinstance(record, StepRecord):
            self._last_step = max(self._last_step, record.step)
            shielded(self._console.complain, "the summary", self._summary.add, record)
            shielded(self._console.complain, "feeding the sinks", self._feed.step, record)
        elif isinstance(record, ValidationRecord):
            shielded(self._console.complain, "feeding the sinks", self._feed.validation, record)
        self._tell_of_troubles(written)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._synced = time.monotonic()
            with self._lock:
                self._writer.sync()

    def write_at_once(self, record: Record, grave: bool = True) -> None:
        """On the training thread, before it acts: what was decided is on the disk when something goes wrong."""
        with self._lock:
            written = self._writer.write(record)
            if grave:
                self._writer.sync()
        if isinstance(record, DecisionRecord):
            self._summary.decision_counts.add(record)
        self.diagnosis.see_later(record)
        self._tell_of_troubles(written)

    def _tell_of_troubles(self, written: bool) -> None:
        if not written and not self._said_dropped:
            self._said_dropped = True
            self._console.say(f"the run file cannot be written ({self._writer.last_error}); training is not affected")

    def note_deaf(self, rank: int, word: LastWord, closing: bool) -> None:
        """The thread that writes otherwise cannot."""
        step = word.unheard_since or 0
        text = f"ranks [{rank}] are not heard since step {step}, though training went on: unisono's thread stands still"
        note = NoteRecord(self.attempt, step, time.time(), text, about="unheard", ranks=(rank,))
        if self._lock.acquire(timeout=LOCK_SECONDS):
            try:
                self._writer.write(note)
            finally:
                self._lock.release()
            self.diagnosis.see_later(note)
        if closing:
            self.close(0, word)

    def facts_for_others(self) -> dict[str, Any]:
        """Where the run is written, and what shows whether its writer lives."""
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return {
            "run_dir": str(self.run_dir),
            "attempt": self.attempt,
            "process": own_process(),
            "hosts_store": self._ranks[0] == 0 and not agent,
        }

    def close(self, lost: int, word: LastWord | None = None) -> None:
        """Once. A listening thread that stands still may stand in the file, so that is not waited for."""
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            return
        try:
            if self._closed:
                return
            self._closed = True
            end = self._write_end(lost, word or LastWord())
        finally:
            self._lock.release()
        self.diagnosis.see(end)
        self._tell_the_end()

    def _write_end(self, lost: int, word: LastWord) -> EndRecord:
        summary = self._summary
        self._end = end = EndRecord(
            attempt=self.attempt,
            step=self._last_step,
            time=time.time(),
            steps=summary.steps,
            heard=summary.heard,
            lost=lost,
            listening_cost=summary.listening_cost,
            ended=word.ended,
            trained=word.step,
            detail=word.exit_code,
        )
        self._writer.write(end)
        self._writer.close()
        return end

    def _tell_the_end(self) -> None:
        summary = self._summary
        for line in shielded(self._console.complain, "the summary", summary.lines) or []:
            self._console.say(line)
        verdict = shielded(self._console.complain, "the verdict", self.diagnosis.verdict) or "no verdict"
        self._console.say(verdict)
        for line in shielded(self._console.complain, "the verdict", self.diagnosis.remarks) or []:
            self._console.say(line)
        place = short(self.run_dir)
        dropped = f" ({self._writer.dropped} records could not be written)" if self._writer.dropped else ""
        found = any(finding.at_least("warning") for finding in self.diagnosis.findings)
        found = found or bool(self._summary.decision_counts.decided)
        look = f"; look at it with: unisono diagnose {place}" if found else ""
        self._console.say(f"recorded in {place}{dropped}{look}")
        self._feed.close(verdict)

    def amend_end(self, word: LastWord, departure: DepartureRecord) -> None:
        """The process fails after the run was closed as one that has finished."""
        if self._end is None or self._end.ended != "finished":
            return
        writer = RunWriter(self.run_dir)
        writer.write(departure)
        self._end = replace(self._end, time=time.time(), ended=word.ended, detail=word.exit_code)
        writer.write(self._end)
        writer.close()
        self._console.say(f"the job failed after training had ended ({word.detail}): the run has not finished well")


def _worker(rank: int, facts: dict[str, Any] | None) -> WorkerFacts:
    """Also of one that has not come yet: workers are known by their place."""
    return (
        WorkerFacts(rank, "", 0, "")
        if facts is None
        else WorkerFacts(rank, facts["host"], facts["pid"], facts["device"])
    )


def _next_attempt(run_dir: Path) -> int:
    try:
        return continue_or_create(run_dir)
    except OSError:
        return 1


LOCK_TRIES, LOCK_SECONDS = 10, 0.3
_unnamed = count(1)


def choose_run_dir(named: str | os.PathLike[str] | None, ranks: list[int]) -> Path:
    """The directory for a model trained by `ranks`. Unnamed ones of the same process get folders in the first."""
    if named:
        return Path(named)
    run = _run_of_this_process()
    if ranks[0] != 0:
        run = run / f"ranks-{ranks[0]}-{ranks[-1]}"
    nth = next(_unnamed)
    return run / f"model-{nth}" if nth > 1 else run


def part_of_run(run_dir: Path) -> str:
    """What tells an unnamed model's directory from the process's own, as in `model-2`; empty for the first model."""
    whole = _run_of_this_process().absolute()
    return str(run_dir.relative_to(whole)) if whole in run_dir.parents else ""


def open_writer(run_dir: Path) -> tuple[Path, RunWriter]:
    """The run's writer. A rank that was killed may hold it for a moment; another live job gets a place beside it."""
    for _ in range(LOCK_TRIES):
        try:
            return run_dir, RunWriter(run_dir)
        except RunInUse:
            time.sleep(LOCK_SECONDS)
    for number in count(2):
        beside = run_dir.with_name(f"{run_dir.name}-{number}")
        with contextlib.suppress(RunInUse):
            return beside, RunWriter(beside)
    raise RunInUse(f"No free place beside `{run_dir}`.")


@functools.cache
def _run_of_this_process() -> Path:
    given = os.environ.get("UNISONO_RUN_DIR")
    return Path(given) if given else _interrupted_run() or _new_run()


def launcher() -> str:
    """Names the process that started this rank: it stays the same when torchrun restarts its workers."""
    return f"{socket.gethostname()}:{os.getppid()}"


def script_name() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0] or "python").stem


def _new_run() -> Path:
    try:
        return new_run_dir(RUNS, script_name())
    except OSError:
        # The writer tries again and says why; a place that cannot be written to must not stop training.
        return Path(RUNS, script_name())


def _interrupted_run() -> Path | None:
    """The latest run, if torchrun restarted us and the same torchrun began it."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    latest = Path(RUNS, "latest")
    try:
        attempts = read_run(latest).attempts
    except RunFileError:
        return None
    return latest.resolve() if attempts and attempts[-1].launcher == launcher() else None
