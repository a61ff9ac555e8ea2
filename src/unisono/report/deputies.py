"""A long run file is gone through by several processes at once, each with some of the rules.

Rules know nothing of each other, so what they find does not depend on who goes through the file.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

from unisono.diagnosis import Diagnosis
from unisono.report.lookthrough import is_wanted
from unisono.rules import RULES, Rule
from unisono.runfile import scan
from unisono.runfile._lines import AnyPath, locate

LONG = 64_000_000
"""Bytes of a file that takes some seconds."""

DUTIES = (("UN501",), ("UN104", "UN105", "UN403"))
"""Codes of the rules that the first deputy takes, and the second. The first has most to do where every step is heard,
the second where few are."""


class Deputies:
    """Processes that go through the file with the costliest rules, if it is long and there are cores for them."""

    def __init__(self, path: AnyPath, after: int) -> None:
        """
        :param after: Attempts up to this one are left out.
        """
        file = locate(path)
        size = _size(file)
        duties = DUTIES[: _spare_cores()] if size >= LONG else ()
        self._deputies = [_Deputy(file, after, size, _named(codes)) for codes in duties]
        self.until = size if duties else None
        """What is written while the file is being read would not be seen by all of them."""

        taken = {code for codes in duties for code in codes}
        self.other_rules = [rule for rule in RULES if rule.code not in taken]

    def __enter__(self) -> Deputies:
        for deputy in self._deputies:
            deputy.start()
        return self

    def __exit__(self, *_: object) -> None:
        for deputy in self._deputies:
            deputy.stop()

    def rules(self) -> list[Rule]:
        """Those that the deputies took, after they have seen the whole file."""
        return [rule for deputy in self._deputies for rule in deputy.result()]


class _Deputy:
    def __init__(self, file: Path, after: int, until: int, rules: Sequence[type[Rule]]) -> None:
        self._file, self._after, self._until, self._rules = file, after, until, rules
        context = get_context("fork")
        self._answer, self._sender = context.Pipe(duplex=False)
        self._process = context.Process(target=self._send, daemon=True)

    def start(self) -> None:
        self._process.start()
        self._sender.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()
        self._answer.close()

    def result(self) -> list[Rule]:
        try:
            rules: list[Rule] = self._answer.recv()
        except (EOFError, OSError):
            # The process has died, perhaps for lack of memory: late is better than nothing.
            return self._look()
        return rules

    def _send(self) -> None:
        # A Ctrl-C reaches both; the other process ends this one.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with suppress(OSError):
            self._sender.send(self._look())

    def _look(self) -> list[Rule]:
        diagnosis = Diagnosis(rules=self._rules)
        for _, record in scan(self._file, self._until):
            if record is not None and is_wanted(record, self._after):
                diagnosis.see(record)
        return diagnosis.hand_over()


def _named(codes: Sequence[str]) -> list[type[Rule]]:
    return [rule for rule in RULES if rule.code in codes]


def _size(file: Path) -> int:
    """0 where it has just been deleted, which whoever reads it will say."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _spare_cores() -> int:
    """None where a copy of this process could inherit a lock that some thread holds."""
    if sys.platform != "linux" or len(os.listdir("/proc/self/task")) > 1:
        return 0
    busy = round(os.getloadavg()[0])
    return max(0, len(os.sched_getaffinity(0)) - 1 - busy)
