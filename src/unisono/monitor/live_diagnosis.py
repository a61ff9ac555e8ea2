"""Diagnosis while training runs: each finding told once, on stderr, to the sinks and to the user's own function."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from unisono.common.console import Console
from unisono.diagnose.engine import Diagnosis
from unisono.records import DecisionRecord, Record, from_line, to_line
from unisono.records.decision_text import is_skip
from unisono.records.finding import Finding
from unisono.show.sinks.feed import Feed
from unisono.show.text.findings import block

WIDTH = 100
HELD_STEPS, HELD_SECONDS = 3, 3.0
"""A finding waits so long before it is told: what shows first may be the symptom of what shows next."""

ACTS = 100
"""Decisions of the guard that are remembered until their steps are over."""

MOST_TOLD = 12
"""Findings shown in full; later ones are in the run file only."""


class LiveDiagnosis:
    def __init__(
        self,
        console: Console,
        ignore: Sequence[str],
        on_finding: Callable[[Finding], None] | None,
        feed: Feed | None = None,
    ) -> None:
        self._diagnosis = Diagnosis(ignore)
        self._console, self._on_finding, self._feed = console, on_finding, feed
        self._told = 0
        self._unread = self._held = False
        self._noticed: dict[str, tuple[int, float]] = {}
        self._later: deque[Record] = deque()
        self._acts: deque[DecisionRecord] = deque(maxlen=ACTS)
        self.findings: list[Finding] = []

    def see(self, record: Record, line: str = "") -> None:
        """As it stands in the file, where numbers have fewer digits: a replay must find the same.

        :param line: The record's line, where it has already been made.
        """
        self._see_decisions()
        self._see(record, line)

    def _see(self, record: Record, line: str = "") -> None:
        written = from_line(line or to_line(record))
        if written is not None:
            self._diagnosis.see(written)
            self._unread = True

    def see_later(self, record: Record) -> None:
        """From another thread than the one that tells."""
        self._later.append(record)

    def tell(self, last: bool = False) -> bool:
        """Tells what is new; whether anything above `info` was. The last time nothing is held back."""
        self._see_decisions()
        if not (self._unread or self._held or last):
            return False
        self._unread, self._held = False, False
        news = self._diagnosis.news(lambda finding: last or self._is_ripe(finding))
        for finding in news:
            self._say(finding)
            if self._feed is not None:
                self._feed.finding(finding)
            self._hand_over(finding)
        self.findings = self._diagnosis.findings()
        return any(finding.at_least("warning") for finding in news)

    def skipped_by_guard(self, step: int) -> bool:
        """As far as it has been seen: a decision is written down before its step is over."""
        return any(is_skip(one) and one.step == step for one in self._acts)

    def _see_decisions(self) -> None:
        while self._later:
            record = self._later.popleft()
            if isinstance(record, DecisionRecord):
                self._acts.append(record)
            self._see(record)

    @property
    def suspicious(self) -> bool:
        return self._diagnosis.suspicious

    def _is_ripe(self, finding: Finding) -> bool:
        step, now = self._diagnosis.run_state.step, time.monotonic()
        noticed = self._noticed.setdefault(finding.code, (step, now))
        ripe = step >= noticed[0] + HELD_STEPS or now >= noticed[1] + HELD_SECONDS
        self._held = self._held or not ripe
        return ripe

    def verdict(self) -> str:
        grave = [finding for finding in self.findings if finding.at_least("warning")]
        if not grave:
            return "nothing else was found" if self._acts else "nothing suspicious was found"
        codes = ", ".join(f"{finding.code} {finding.slug}" for finding in grave)
        return f"found: {codes}"

    def _say(self, finding: Finding) -> None:
        self._told += finding.at_least("warning")
        if finding.at_least("warning") and self._told <= MOST_TOLD:
            for line in block(finding, WIDTH):
                self._console.say(line)

    def _hand_over(self, finding: Finding) -> None:
        if self._on_finding is None:
            return
        try:
            self._on_finding(finding)
        except Exception as error:
            self._console.complain(f"`on_finding` failed ({type(error).__name__}: {error}); training is not affected")
