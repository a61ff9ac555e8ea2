"""What the guard tells the user: the run file and a line on stderr, from the first worker for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from unisono.common.console import Console
from unisono.records import DecisionRecord, NoteRecord, Record
from unisono.records.decision_text import decision_line


class WritesAtOnce(Protocol):
    """The run file, for what must be in it before training goes on."""

    attempt: int

    def write_at_once(self, record: Record, grave: bool = True) -> None: ...


class Reporter:
    """:param log: None on all workers but the first."""

    def __init__(self, log: WritesAtOnce | None, console: Console, step_now: Callable[[], int]) -> None:
        self.step_now, self.say, self.complain = step_now, console.say, console.complain
        self._log, self._console = log, console
        self._broken: set[str] = set()

    @property
    def attempt(self) -> int:
        return 1 if self._log is None else self._log.attempt

    def decided(self, record: DecisionRecord) -> None:
        if self._log is None:
            return
        # Clipping is an everyday matter.
        grave = record.action != "clip"
        self._log.write_at_once(record, grave)
        if grave:
            self._console.say(decision_line(record))

    def tell_of_broken_rows(self, broken: Mapping[str, str]) -> None:
        """Each once."""
        for name in broken.keys() - self._broken:
            self._broken.add(name)
            self._console.say(f"the guard's row `{name}` failed ({broken[name]}); it is not asked any more")

    def ended(self, why: str, apart: tuple[int, ...]) -> None:
        """:param apart: Ranks whose decisions were not the first worker's."""
        if self._log is None:
            return
        text = f"the guard has ended: {why}"
        self._console.say(text)
        if apart:
            note = NoteRecord(self._log.attempt, self.step_now(), time.time(), text, "decisions-differ", apart)
            self._log.write_at_once(note)
