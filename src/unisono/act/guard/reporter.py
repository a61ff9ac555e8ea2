"""What the guard tells the user: the run file and a line on stderr, from the first worker for all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from unisono.common.console import QUIET_SECONDS, Console
from unisono.records import DecisionRecord, NoteRecord, Record
from unisono.records.decision_text import decision_line


class WritesAtOnce(Protocol):
    """The run file, for what must be in it before training goes on."""

    attempt: int

    def write_at_once(self, record: Record, grave: bool = True) -> None: ...


SAID_EACH = 10
"""Acts of one kind that are said one by one; a fault that lasts may skip every step."""


class Repeats:
    """Acts of one kind: the first few are said, then one a minute, for all of them."""

    def __init__(self) -> None:
        self._number = self._unsaid = 0
        self._said = -math.inf

    def remark(self, now: float) -> str | None:
        """What to add where the newest one is said; `None` where it is not."""
        self._number += 1
        if self._number > SAID_EACH and now - self._said < QUIET_SECONDS:
            self._unsaid += 1
            return None
        unsaid, self._unsaid, self._said = self._unsaid, 0, now
        if unsaid:
            return f"; {unsaid:,} more since the last line"
        return "; from now on said once a minute, the run file has them all" if self._number == SAID_EACH else ""


class Reporter:
    """:param log: None on all workers but the first."""

    def __init__(self, log: WritesAtOnce | None, console: Console, step_now: Callable[[], int]) -> None:
        self.step_now, self.say, self.complain = step_now, console.say, console.complain
        self._log, self._console = log, console
        self._broken: set[str] = set()
        self._used_up = ""
        self._repeats: dict[tuple[str, str], Repeats] = {}

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
            repeats = self._repeats.setdefault((record.action, record.row), Repeats())
            if (remark := repeats.remark(time.monotonic())) is not None:
                self._console.say(decision_line(record) + remark)

    def tell_of_broken_rows(self, broken: Mapping[str, str]) -> None:
        """Each once."""
        for name in broken.keys() - self._broken:
            self._broken.add(name)
            self._console.say(f"the guard's row `{name}` failed ({broken[name]}); it is not asked any more")

    def tell_of_used_up(self, why: str) -> None:
        """:param why: A roll-back was not made, in words; once until one is made again."""
        told, self._used_up = self._used_up == why, why
        if why and not told and self._log is not None:
            self._console.say(f"not rolled back: {why} (guard)")
            self._note(why, "roll-backs-used-up")

    def ended(self, why: str, apart: tuple[int, ...]) -> None:
        """:param apart: Ranks whose decisions were not the first worker's."""
        if self._log is None:
            return
        text = f"the guard has ended: {why}"
        self._console.say(text)
        if apart:
            self._note(text, "decisions-differ", apart)

    def _note(self, text: str, about: str, ranks: tuple[int, ...] = ()) -> None:
        if self._log is not None:
            self._log.write_at_once(NoteRecord(self._log.attempt, self.step_now(), time.time(), text, about, ranks))
