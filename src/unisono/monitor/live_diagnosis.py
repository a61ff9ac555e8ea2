"""Diagnosis while training runs: each finding told once, on stderr, to the sinks and to the user's own function."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from unisono.common.console import Console
from unisono.common.own_faults import shielded
from unisono.common.terminal import plain
from unisono.diagnose.engine import Diagnosis
from unisono.diagnose.manuals import ManualThresholds, asked_for
from unisono.records import DecisionRecord, Record, StepRecord, to_line
from unisono.records.decision_text import is_skip
from unisono.records.finding import Finding
from unisono.records.known_attempts import KnownAttempts
from unisono.show.analysis.checkup import conclude
from unisono.show.analysis.scan_run import RunOverview
from unisono.show.sinks.feed import Feed
from unisono.show.text.findings import block
from unisono.show.text.manuals import manual_lines

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
        self._manuals = ManualThresholds() if asked_for(os.environ) else None
        self._console, self._on_finding, self._feed = console, on_finding, feed
        # A fault of ours must not keep records from the file, nor one finding from being told with the others.
        self._shielded = partial(shielded, console.complain)
        self._shown: set[str] = set()
        self._unread = self._held = False
        self._noticed: dict[str, tuple[int, float]] = {}
        self._attempts = KnownAttempts()
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
        """A record that a replay would leave out is left out here, too; it stands in the file all the same."""
        written = self._shielded("reading a record back", lambda: self._attempts.read(line or to_line(record)))
        if written is not None:
            self._shielded("the diagnosis", self._diagnosis.see, written)
            if self._manuals is not None and isinstance(written, StepRecord):
                self._shielded("the manuals' thresholds", self._manuals.see, written)
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
        news = self._shielded("the diagnosis", self._diagnosis.news, lambda one: last or self._is_ripe(one)) or []
        for finding in news:
            self._shielded("showing a finding", self._say, finding)
            if self._feed is not None:
                self._shielded("handing a finding to the sinks", self._feed.finding, finding)
            if self._on_finding is not None:
                self._shielded("`on_finding`", self._on_finding, finding)
        found = self._shielded("the diagnosis", self._diagnosis.findings)
        self.findings = self.findings if found is None else found
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
        return bool(self._shielded("the diagnosis", lambda: self._diagnosis.suspicious))

    def _is_ripe(self, finding: Finding) -> bool:
        step, now = self._diagnosis.run_state.step, time.monotonic()
        noticed = self._noticed.setdefault(finding.code, (step, now))
        waited = step >= noticed[0] + HELD_STEPS or now >= noticed[1] + HELD_SECONDS
        # Who tells that a rank has gone has looked for the cause already, and the job may end in the next second.
        ripe = waited or (finding.code == "UN502" and "how" in finding.evidence)
        self._held = self._held or not ripe
        return ripe

    def verdict(self) -> str:
        """The sentence that everybody is told in the end, and what was found."""
        grave = [finding for finding in self.findings if finding.at_least("warning")]
        codes = ", ".join(f"{finding.code} {finding.slug}" for finding in grave)
        said = conclude(self._diagnosis, RunOverview("", "", None, 0)).verdict_text
        return f"{said} ({codes})" if codes else said

    def remarks(self) -> list[str]:
        """What the manuals' thresholds say, where that was asked for."""
        return [] if self._manuals is None else manual_lines(self._manuals.crossings)

    def _say(self, finding: Finding) -> None:
        """In full once; one line where it has become graver since."""
        if not finding.at_least("warning"):
            return
        if finding.code in self._shown:
            self._console.say(f"{finding.code} {finding.slug} is {finding.severity} now: {plain(finding.why)}")
            return
        self._shown.add(finding.code)
        if len(self._shown) <= MOST_TOLD:
            for line in block(finding, WIDTH):
                self._console.say(line)
