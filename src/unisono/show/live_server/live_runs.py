"""Runs that somebody looks at: their files are read in the background, and shown as they stand."""

from __future__ import annotations

import gzip
import hashlib
import json
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from unisono.records import AttemptRecord, DepartureRecord, EndRecord, Record, RunRecord
from unisono.records.runfile.departures import belonging, departures_beside
from unisono.show.live_server.run_index import condition
from unisono.show.live_server.tail import Bite, Standing, Tail

MOST_FOLLOWED = 8
MOST_KEPT = 4
PAUSE = 0.5
"""Seconds between two looks at a file that had nothing new."""

AFTER_END = 60.0
"""Seconds for which a rank may still fail when the writer is done."""

QUIET = 2.0
"""Seconds without a new line after which the ranks' own files are looked at, too."""

INTEREST = 30.0
"""Seconds after the last question during which a file is read on: while nobody looks, nothing is done."""

PATIENCE = 0.3
"""Seconds a question waits for a file that is still being read: a short one is then shown whole at once."""

LONGEST_HOLD, BREATH = 0.05, 0.001
"""Seconds for which reading keeps questions waiting, and the pause in which they are answered."""

REDRAWN = 3.0
"""Seconds between two states of a file that is still being read."""

GZIP_EFFORT = 4

_drawing = threading.Lock()
"""One state is made at a time: libraries for charts keep some of what they do in one place for all threads."""


class FollowedRun(Protocol):
    """A run as the page shows it."""

    def see(self, record: Record) -> None: ...

    def state(self, have: str) -> dict[str, Any]:
        """Fit for JSON; `have` names the charts that the browser has drawn from an earlier state of this view."""


@dataclass(frozen=True, slots=True)
class ReadyPage:
    """A state that is ready to be sent."""

    version: str
    body: bytes
    gzipped: bytes
    made: float


class Follower:
    """Reads one run in a thread of its own, and answers from any other.

    :param complain: Told what went wrong.
    """

    def __init__(self, path: Path, make_view: Callable[[], FollowedRun], complain: Callable[[str], None]) -> None:
        self._path, self._tail, self._make_view, self._complain = path, Tail(path), make_view, complain
        self._lock = threading.Lock()
        self._standing, self._changes = Standing(), 0
        self._begin()
        self._asked = time.monotonic()
        self._stopped, self._caught_up, self._wake = threading.Event(), threading.Event(), threading.Event()
        threading.Thread(target=self._read_on, name="unisono-follower", daemon=True).start()

    def _begin(self) -> None:
        self._view, self._life = self._make_view(), secrets.token_hex(4)
        self._ended, self._unshown, self._looked = "", 0, False
        self._header: RunRecord | None = None
        self._attempt: AttemptRecord | None = None
        self._beside: set[DepartureRecord] = set()
        self._kept: OrderedDict[str, ReadyPage] = OrderedDict()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def shown(self, have: str, version: str) -> ReadyPage:
        """
        :param have: Names the charts that the browser has drawn.
        :param version: That of the state from which it has.
        """
        self._wake_up()
        with _drawing, self._lock:
            # Charts that another view has drawn are of no use to this one, however alike they look.
            have = have if version.startswith(self._life) else ""
            following = self._following()
            version = self._life + _digest(f"{self._changes} {following}")
            if not self._still_good(have, version):
                state = {**self._view.state(have), "following": following, "version": version}
                self._kept[have] = _ready(version, state)
            self._kept.move_to_end(have)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return self._kept[have]

    def _still_good(self, have: str, version: str) -> bool:
        """While a long file is read, drawing it all the time would only hold up the reading."""
        kept = self._kept.get(have)
        if kept is None:
            return False
        return kept.version == version or (self._standing.more and time.monotonic() - kept.made < REDRAWN)

    def _wake_up(self) -> None:
        """Waits a little for what is being read."""
        now = time.monotonic()
        if now - self._asked >= INTEREST:
            self._caught_up.clear()
        self._asked = now
        self._wake.set()
        self._caught_up.wait(PATIENCE)

    def _following(self) -> dict[str, Any]:
        standing = self._standing
        status, text = self._status(standing)
        return {
            "status": status,
            "text": text,
            "share": standing.position / standing.size if standing.size else 0.0,
            "unreadable": standing.unreadable + self._unshown,
        }

    def _status(self, standing: Standing) -> tuple[str, str]:
        if standing.newer_format:
            return "newer", f"written by a newer unisono (format {standing.newer_format}): pip install -U unisono"
        if standing.more or not self._caught_up.is_set():
            return "reading", f"reading, {100 * standing.position // max(standing.size, 1)} %"
        if not standing.position:
            return "waiting", "nothing written yet"
        if not standing.there:
            return "gone", "the file is gone: this was in it"
        return condition(self._ended, standing.modified, time.time())

    def _read_on(self) -> None:
        while not self._stopped.is_set():
            wanted = time.monotonic() - self._asked < INTEREST
            if not (wanted and self._take(self._tail.bite())):
                if wanted:
                    self._look_beside()
                self._caught_up.set()
                self._wake.wait(PAUSE)
                self._wake.clear()

    def _take(self, bite: Bite) -> bool:
        """Whether there is more."""
        with self._lock:
            if bite.anew:
                self._begin()
            self._standing = bite.standing
        left = deque(bite.records)
        while left:
            self._see_some(left)
            if left:
                time.sleep(BREATH)  # a lock that is taken again at once is not given to those who wait
        return bite.standing.more

    def _look_beside(self) -> None:
        """While the writer is silent: what single ranks have left about those that went, perhaps the writer itself."""
        age = time.time() - self._standing.modified
        is_over = self._looked and self._ended and age > AFTER_END
        if self._attempt is None or age < QUIET or is_over:
            return
        self._looked = True
        found = set(belonging(departures_beside(self._path), self._attempt, self._header, self._ended))
        left: deque[Record] = deque(found - self._beside)
        self._beside |= found
        while left:
            self._see_some(left)

    def _see_some(self, left: deque[Record]) -> None:
        with self._lock:
            until = time.monotonic() + LONGEST_HOLD
            while left and time.monotonic() < until:
                self._see(left.popleft())
            self._changes += 1

    def _see(self, record: Record) -> None:
        if not isinstance(record, DepartureRecord):
            self._ended = record.ended if isinstance(record, EndRecord) else ""
        if isinstance(record, AttemptRecord):
            self._attempt = record
        elif isinstance(record, RunRecord):
            self._header = record
        try:
            self._view.see(record)
        except Exception as error:
            self._unshown += 1
            self._complain(f"a record of kind `{record.kind}` cannot be shown ({type(error).__name__}: {error})")


class Followers:
    """The runs that were asked for last; for any thread."""

    def __init__(self, make_view: Callable[[], FollowedRun], complain: Callable[[str], None]) -> None:
        self._make_view, self._complain = make_view, complain
        self._lock = threading.Lock()
        self._by_path: OrderedDict[Path, Follower] = OrderedDict()

    def of(self, path: Path) -> Follower:
        with self._lock:
            if path not in self._by_path:
                self._by_path[path] = Follower(path, self._make_view, self._complain)
            self._by_path.move_to_end(path)
            if len(self._by_path) > MOST_FOLLOWED:
                self._by_path.popitem(last=False)[1].stop()
            return self._by_path[path]

    def close(self) -> None:
        with self._lock:
            while self._by_path:
                self._by_path.popitem()[1].stop()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _ready(version: str, state: dict[str, Any]) -> ReadyPage:
    body = json.dumps(state, allow_nan=False, separators=(",", ":")).encode()
    return ReadyPage(version, body, gzip.compress(body, GZIP_EFFORT, mtime=0), time.monotonic())
