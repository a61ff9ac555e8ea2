"""One sink's thread: it takes what was put, hands it to the sink, and tries again when the sink fails."""

from __future__ import annotations

import threading
import time
from collections import deque

from unisono.common.backoff import Backoff
from unisono.common.console import Console
from unisono.common.errors import UserError
from unisono.common.terminal import plain
from unisono.records.finding import Finding
from unisono.show.sinks.sink import OpenSink, Sink, SinkReading, SinkRun

LONGEST_QUEUE = 1_000
READINGS_A_SECOND = 50
"""Readings that come faster are merged: a chart cannot show more, and each costs a tenth of a millisecond."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a failing sink is tried again; doubled each time."""

LAST_PAUSE = 0.2
"""The same, while the run waits to end."""

LONGEST_REASON = 300


class Delivery:
    def __init__(self, sink: Sink, run: SinkRun, console: Console) -> None:
        self.sink, self._run_facts, self._console = sink, run, console
        self._readings: deque[SinkReading] = deque()
        self._findings: deque[Finding] = deque()
        self._lost = 0
        # Held for an append or a copy, never while the sink works.
        self._lock = threading.Lock()
        self._open: OpenSink | None = None
        self._backoff, self._retry = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0.0
        self._complained = False
        self._verdict: str | None = None
        self._deadline = 0.0
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"unisono-{sink.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, reading: SinkReading) -> None:
        with self._lock:
            if self._readings and (self.sink.only_latest or _in_the_same_moment(self._readings[-1], reading)):
                self._readings[-1] = self._readings[-1].followed_by(reading)
                return
            if len(self._readings) >= LONGEST_QUEUE:
                self._readings.popleft()
                self._lost += 1
            self._readings.append(reading)

    def put_finding(self, finding: Finding) -> None:
        """Kept until it is taken: there are few."""
        self._findings.append(finding)
        self._wake.set()

    def close(self, verdict: str, deadline: float) -> None:
        """Does not wait."""
        self._deadline, self._verdict = deadline, verdict
        self._wake.set()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join(max(0.0, self._deadline - time.monotonic()))

    @property
    def lost(self) -> int:
        """Readings that the sink has not got."""
        return self._lost + len(self._readings)

    @property
    def undelivered(self) -> tuple[Finding, ...]:
        return tuple(self._findings)

    def _run(self) -> None:
        while self._verdict is None:
            self._wake.clear()
            self._turn()
            if self._verdict is None:
                self._wake.wait(self._pause())
        while not self._turn() and time.monotonic() + LAST_PAUSE < self._deadline:
            time.sleep(LAST_PAUSE)
        self._close(self._verdict)

    def _turn(self) -> bool:
        """Whether all went well."""
        try:
            self._open = self._open or self._opened()
            try:
                self._deliver_findings(self._open)
            finally:
                # One finding that the sink cannot stomach must not keep the numbers from it.
                self._deliver_readings(self._open)
        except Exception as error:
            self._retry = self._backoff.failed()
            self._complain(error)
            return False
        return True

    def _opened(self) -> OpenSink:
        self.sink.check_installed()
        return self.sink.open(self._run_facts)

    def _deliver_findings(self, open_sink: OpenSink) -> None:
        for _ in range(len(self._findings)):
            try:
                open_sink.finding(self._findings[0])
            except Exception:
                self._findings.rotate(-1)
                raise
            self._findings.popleft()
            self._delivered()

    def _deliver_readings(self, open_sink: OpenSink) -> None:
        with self._lock:
            batch, self._readings = list(self._readings), deque()
        if not batch:
            return
        try:
            open_sink.metrics(batch)
        except Exception:
            self._lost += len(batch)
            raise
        self._delivered()

    def _delivered(self) -> None:
        self._backoff.succeeded()
        self._retry = 0.0

    def _close(self, verdict: str) -> None:
        if self._open is None:
            return
        try:
            self._open.close(verdict)
        except Exception as error:
            self._complain(error)

    def _pause(self) -> float:
        if self._retry:
            return self._retry
        return self._open.seconds if self._open is not None else FIRST_PAUSE

    def _complain(self, error: Exception) -> None:
        if self._complained:
            return
        self._complained = True
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        reason = plain(reason)[:LONGEST_REASON]
        self._console.complain(f"the sink `{self.sink.name}` fails ({reason}); training is not affected")


def _in_the_same_moment(one: SinkReading, other: SinkReading) -> bool:
    return int(one.time * READINGS_A_SECOND) == int(other.time * READINGS_A_SECOND)
