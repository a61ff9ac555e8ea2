"""Hands each step's numbers and each finding to the sinks, on rank 0. Nothing here waits for a sink."""

from __future__ import annotations

import time
from collections.abc import Sequence

from unisono.common.console import Console
from unisono.records import StepRecord, ValidationRecord
from unisono.records.finding import Finding
from unisono.records.global_norm import GlobalNorm
from unisono.show.analysis.checkup import count
from unisono.show.sinks.delivery import Delivery
from unisono.show.sinks.names import reading_of, validation_reading
from unisono.show.sinks.sink import Sink, SinkReading, SinkRun

PATIENCE = 2.0
"""Seconds at the end for what has not been delivered yet."""


class Feed:
    def __init__(self, sinks: Sequence[Sink], console: Console) -> None:
        self._sinks, self._console = sinks, console
        self._deliveries: tuple[Delivery, ...] = ()
        self._norm = GlobalNorm()

    def start(self, run: SinkRun) -> None:
        self._deliveries = tuple(Delivery(sink, run, self._console) for sink in self._sinks)
        for delivery in self._deliveries:
            try:
                delivery.start()
            except RuntimeError as error:
                self._console.say(f"the sink `{delivery.sink.name}` has no thread ({error}); training is not affected")

    def step(self, record: StepRecord) -> None:
        if self._deliveries:
            self._put(reading_of(self._norm.filled_in(record)))

    def validation(self, record: ValidationRecord) -> None:
        self._put(validation_reading(record))

    def _put(self, reading: SinkReading) -> None:
        for delivery in self._deliveries:
            delivery.put(reading)

    def finding(self, finding: Finding) -> None:
        for delivery in self._deliveries:
            delivery.put_finding(finding)

    def close(self, verdict: str, seconds: float = PATIENCE) -> None:
        """Waits `seconds` at most, for all sinks together, and says what did not arrive."""
        deadline = time.monotonic() + seconds
        for delivery in self._deliveries:
            delivery.close(verdict, deadline)
        for delivery in self._deliveries:
            delivery.join()
        missed = [text for delivery in self._deliveries if (text := _missed(delivery))]
        if missed:
            self._console.say(f"not everything reached the sinks: {'; '.join(missed)}. The run file has it all")


def _missed(delivery: Delivery) -> str:
    parts = []
    if delivery.lost:
        parts.append(count(delivery.lost, "reading"))
    if delivery.undelivered:
        parts.append(", ".join(finding.code for finding in delivery.undelivered))
    return f"{delivery.sink.name} missed {' and '.join(parts)}" if parts else ""
