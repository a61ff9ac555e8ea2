"""At the end of a process: on a crash or SIGTERM a rank leaves its last steps behind, and a word.

SIGTERM reaches a rank that waits in a collective, where no Python handler can run. Python's own C handler still writes
to the wake-up descriptor, and a thread of ours reads it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from unisono.exchange.departures import STAYS
from unisono.monitor.noted_exit import note_exits

SIGTERM = "SIGTERM"
"""The reason where this process ends by it; `WARNED` where the program has a handler of its own and may go on."""

WARNED = "warned"
PATIENCE = 0.8
"""Seconds for all last words together: a launcher waits for the end of this process."""

Waits = Callable[[float], None]
Callback = Callable[[str], Waits | None]
_callbacks: list[Callback] = []
_watching = False
_warned_at: float | None = None
"""When the program last met SIGTERM with a handler of its own."""

GOES_ON = 30.0
"""Seconds of training after SIGTERM beyond which the program has gone on; a launcher waits for no longer."""

STALE = "_unisono_is_stale"
"""Marks an exception, which would keep its frames alive if it were held here."""

_speaking = threading.RLock()


def on_exit(callback: Callback) -> None:
    """`callback(reason)` is called when this process is about to end early; what it returns may wait some seconds."""
    _callbacks.append(callback)
    with contextlib.suppress(Exception):
        setattr(_newest_error(), STALE, True)
    _watch_sigterm()
    note_exits()


def forget(callback: Callback) -> None:
    if callback in _callbacks:
        _callbacks.remove(callback)


def uncaught() -> BaseException | None:
    """The exception that nobody caught and that ends the interpreter; a notebook outlives those of its cells."""
    error = _newest_error()
    return None if hasattr(error, STALE) or hasattr(sys, "ps1") else error


def _newest_error() -> BaseException | None:
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def warned(trained_until: float) -> bool:
    """Whether the program has met SIGTERM, and ends because of it."""
    return _warned_at is not None and trained_until - _warned_at < GOES_ON


def speak(reason: str) -> None:
    """Once: the main thread and the watching thread may both come here."""
    with _speaking:
        began, waits = time.monotonic(), []
        while _callbacks:
            with contextlib.suppress(Exception):
                waits.append(_callbacks.pop()(reason))
        for wait in filter(None, waits):
            with contextlib.suppress(Exception):
                wait(max(0.0, began + PATIENCE - time.monotonic()))
        if reason == SIGTERM and waits:
            # So long that a rank which is sent away because this one has ended is sent away visibly later.
            time.sleep(max(0.0, began + STAYS - time.monotonic()))


def _watch_sigterm() -> None:
    global _watching
    if _watching or threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    if previous != -1:
        # Somebody else (asyncio) listens there already.
        signal.set_wakeup_fd(previous)
        os.close(read_end)
        os.close(write_end)
        return
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _die)
    _watching = True
    # A child's SIGTERM (data loaders get one) must not end up in the parent's pipe.
    os.register_at_fork(after_in_child=_unwatch)
    threading.Thread(target=_wait_for_signals, args=(read_end,), name="unisono-last-words", daemon=True).start()


def _unwatch() -> None:
    _callbacks.clear()
    with contextlib.suppress(ValueError, OSError):
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is _die:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die(number: int, frame: FrameType | None) -> None:
    """What SIGTERM did before: the thread below has usually ended the process already."""
    speak(SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for_signals(read_end: int) -> None:
    global _warned_at
    while number := os.read(read_end, 1):
        if number[0] == signal.SIGTERM:
            dies = signal.getsignal(signal.SIGTERM) is _die
            _warned_at = None if dies else time.time()
            speak(SIGTERM if dies else WARNED)
            if dies:
                # Only the main thread may use `signal.signal`, and it may be stuck in a collective.
                ctypes.CDLL(None).signal(signal.SIGTERM, None)
                os.kill(os.getpid(), signal.SIGTERM)
