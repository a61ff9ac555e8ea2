"""Rank 0's part of `record_validation`: of what the ranks hand over, one number a step becomes a record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono.records import ValidationRecord

PATIENCE = 10.0
"""Seconds that the first worker has to say something itself, and a number's step to be written down."""


@dataclass(slots=True)
class _Recorded:
    opened: float
    message: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class Validations:
    """The first worker's numbers count; those of another one only as long as nobody before it has said anything."""

    def __init__(self, ranks: Sequence[int], attempt: int) -> None:
        self._ranks, self._attempt = ranks, attempt
        self._open: dict[int, _Recorded] = {}
        self._speaker = len(ranks)
        self._last: int | None = None

    def add(self, worker: int, message: Mapping[str, Any]) -> None:
        """Those of a step that has been told, or of an earlier one, come too late."""
        step = int(message["step"])
        if self._last is None or step > self._last:
            self._open.setdefault(step, _Recorded(time.monotonic())).message.setdefault(worker, message)
            self._speaker = min(self._speaker, worker)

    def complete(self, written: int, everything: bool = False) -> Iterator[ValidationRecord]:
        """In order, each behind the step after which it was recorded.

        :param written: The newest step that has been written down.
        """
        for step, recorded in sorted(self._open.items()):
            known = self._speaker in recorded.message
            in_time = time.monotonic() - recorded.opened <= PATIENCE and not everything
            if in_time and (self._speaker > 0 or step > written) and known:
                return
            del self._open[step]
            if known:
                self._last = step
                yield self._record(recorded.message[self._speaker])

    def _record(self, message: Mapping[str, Any]) -> ValidationRecord:
        rank = self._ranks[self._speaker]
        return ValidationRecord(self._attempt, int(message["step"]), message["time"], rank, message["value"])
