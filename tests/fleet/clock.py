"""A clock that is set, in place of the module `time`: time-outs pass without anybody waiting."""

import threading
import time

YIELD = 0.001


class Clock:
    """Real where it is not set: `time`, `thread_time` and the rest are Python's own."""

    def __init__(self, now=1_000.0):
        self.now = now
        self._lock = threading.Lock()

    def install(self, monkeypatch, *modules):
        """Those modules see this clock as `time`, and nobody else does."""
        for module in modules:
            monkeypatch.setattr(module, "time", self)
        return self

    def advance(self, seconds):
        with self._lock:
            self.now += seconds

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        """Others get the processor meanwhile, and the clock goes on by itself: what waits for a deadline ends."""
        time.sleep(YIELD)
        self.advance(seconds)

    def __getattr__(self, name):
        return getattr(time, name)
