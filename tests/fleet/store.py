"""A rank's connection to the shared store, which can lose messages and break."""

import contextlib


class UnreliableStore:
    def __init__(self, store):
        self._store = store
        self._to_lose = 0
        self.cut_off = False
        """Whether every question fails."""

        self.lost = 0

    def lose(self, messages):
        """The next messages of the ring vanish on their way, and nobody is told."""
        self._to_lose += messages

    @contextlib.contextmanager
    def broken(self):
        """Nothing reaches the store meanwhile."""
        self.cut_off = True
        try:
            yield
        finally:
            self.cut_off = False

    def set(self, key, value):
        self._connected()
        if self._to_lose and key.startswith("m/"):
            self._to_lose -= 1
            self.lost += 1
            return
        self._store.set(key, value)

    def __getattr__(self, name):
        self._connected()
        return getattr(self._store, name)

    def _connected(self):
        if self.cut_off:
            raise ConnectionError("the store is gone")
