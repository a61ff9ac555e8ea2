"""At the end of a process: on a crash or SIGTERM a rank leaves its last steps behind.

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
from collections.abc import Callable
from types import FrameType

_callbacks: list[Callable[[str], None]] = []
_watching = False
_speaking = threading.RLock()


def on_exit(callback: Callable[[str], None]) -> None:
    """`callback(reason)` is called when this process is about to end early."""
    _callbacks.append(callback)
    _watch_sigterm()


def forget(callback: Callable[[str], None]) -> None:
    if callback in _callbacks:
        _callbacks.remove(callback)


def crashed() -> bool:
    """Whether the interpreter is ending because of an exception nobody caught."""
    return getattr(sys, "last_exc", None) is not None or getattr(sys, "last_value", None) is not None


def speak(reason: str) -> None:
    """Once: the main thread and the watching thread may both come here."""
    with _speaking:
        while _callbacks:
            with contextlib.suppress(Exception):
                _callbacks.pop()(reason)


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
    speak("SIGTERM")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_for_signals(read_end: int) -> None:
    while number := os.read(read_end, 1):
        if number[0] == signal.SIGTERM:
            speak("SIGTERM")
            if signal.getsignal(signal.SIGTERM) is _die:
                # Only the main thread may use `signal.signal`, and it may be stuck in a collective.
                ctypes.CDLL(None).signal(signal.SIGTERM, None)
                os.kill(os.getpid(), signal.SIGTERM)
