"""Signs of life, as rank 0 sees them: who is missing, and who trains on without reporting."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from unisono.exchange.watch_rank0 import SILENT_SECONDS

LONGEST_GAP = 1.0
"""Seconds between two looks that count: for as long as rank 0 itself is held up, the others' silence says nothing."""


@dataclass(frozen=True, slots=True)
class LivenessChange:
    about: str
    """`missing`, `unheard` or `returned`, as in a note."""

    workers: tuple[int, ...]


class Liveness:
    def __init__(self) -> None:
        self._looked, self._seconds = time.monotonic(), 0.0
        self._heard: dict[int, float] = {}
        self._steps: dict[int, int] = {}
        """The newest step of the whole job when each worker was last heard."""

        self._gone: dict[int, str] = {}

    def heard(self, worker: int, newest: int) -> None:
        self._heard[worker] = self._now()
        self._steps[worker] = newest

    def silence(self, worker: int) -> float:
        """Seconds since it was last heard."""
        return self._now() - self._heard.get(worker, -math.inf)

    def left(self, worker: int) -> None:
        """It said goodbye."""
        self._heard.pop(worker, None)
        self._gone.pop(worker, None)

    def changes(self, newest: int) -> list[LivenessChange]:
        """What has changed since the last call; `newest` is the newest step of the whole job."""
        now = self._now()
        silent = [worker for worker, last in self._heard.items() if now - last > SILENT_SECONDS]
        state = {worker: "unheard" if newest > self._steps[worker] + 1 else "missing" for worker in silent}
        returned = tuple(sorted(worker for worker in self._gone if worker in self._heard and worker not in state))
        news = {worker: about for worker, about in state.items() if self._gone.get(worker) != about}
        self._gone = state
        found = [
            LivenessChange(about, tuple(sorted(worker for worker, one in news.items() if one == about)))
            for about in sorted(set(news.values()))
        ]
        return [*found, LivenessChange("returned", returned)] if returned else found

    def _now(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._looked, LONGEST_GAP)
        self._looked = now
        return self._seconds
