"""Times of several pieces of work, taken by turns, so that whatever else the machine does hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

LARGER_THAN_A_CACHE = 256 << 20
"""Bytes that are written before each piece of work on a GPU, so that none finds its input in the cache."""

SWEEPS = 24
"""So often, which takes a GPU longer than the host needs to launch the work."""


class Stopwatch:
    """
    :param seconds: how long turns are taken, at least `fewest` and at most `most` of them.
    """

    def __init__(self, device: torch.device, seconds: float, fewest: int = 5, most: int = 50) -> None:
        self.device, self.seconds, self.fewest, self.most = device, seconds, fewest, most
        on_gpu = device.type == "cuda"
        self._sweep = torch.empty(LARGER_THAN_A_CACHE, dtype=torch.int8, device=device) if on_gpu else None

    def by_turns(self, works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
        """Median milliseconds of each, after one untimed turn."""
        times: dict[str, list[float]] = {name: [] for name in works}
        for work in works.values():
            self._milliseconds(work)
        began, turns = time.perf_counter(), 0
        while turns < self.fewest or (turns < self.most and time.perf_counter() - began < self.seconds):
            for name, work in works.items():
                times[name].append(self._milliseconds(work))
            turns += 1
        return {name: statistics.median(found) for name, found in times.items()}

    def _milliseconds(self, work: Callable[[], object]) -> float:
        if self._sweep is None:
            began = time.perf_counter()
            work()
            return 1000 * (time.perf_counter() - began)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Queued behind the sweeps, work is timed without the host's part of its launch.
        for _ in range(SWEEPS):
            self._sweep.zero_()
        begin.record()
        work()
        end.record()
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds
