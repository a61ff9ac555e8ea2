"""A thread that writes while training goes on; of what comes while it is busy, only the newest is written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

Task = Callable[[], None]


class Writer:
    """Small tasks are all done, in their order, before the next large one."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._changed = threading.Condition()
        self._small: list[Task] = []
        self._large: Task | None = None
        self._busy = False
        self._closing = False
        self.stopped = False
        """What is being written should end in the middle."""

        # A daemon: a disk that does not answer must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="unisono-checkpoints", daemon=True)
        self._thread.start()

    def soon(self, task: Task) -> None:
        with self._changed:
            self._small.append(task)
            self._changed.notify_all()

    def newest(self, task: Task) -> bool:
        """Whether another one had to give way, which is then never written."""
        with self._changed:
            overtaken, self._large = self._large is not None, task
            self._changed.notify_all()
        return overtaken

    def wait(self, seconds: float) -> bool:
        """Until all that was asked for is done."""
        with self._changed:
            return self._changed.wait_for(self._idle, timeout=seconds)

    def close(self, patience: float) -> None:
        done = self.wait(patience)
        with self._changed:
            self._closing = True
            self.stopped = not done
            self._changed.notify_all()
        self._thread.join(timeout=1.0)

    def _idle(self) -> bool:
        return not (self._small or self._large or self._busy)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                task()
            except Exception as error:
                with contextlib.suppress(Exception):
                    self._failed(error)

    def _next(self) -> Task | None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or not self._idle())
            if self._closing:
                return None
            self._busy = True
            if self._small:
                return self._small.pop(0)
            task, self._large = self._large, None
            return task
