"""At the end of a job: how long its training thread waits for the listening thread."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from unisono.exchange import store

FAREWELL = 6.0
"""Seconds for what is still on its way at the end; longer than the 5 s that a name server may hold the store up."""

STANDS_STILL_AT_END = 1.5
"""Seconds without processor time after which the thread counts as stuck."""

LOOK = 0.02


def wait_for_end(
    thread: threading.Thread, phase: Callable[[], str], patience_of: Mapping[str, float], computes_in: str
) -> None:
    """Not for a thread that stands still: it uses no processor time, while on a busy machine its work may take long.

    The store may be held up for seconds: a thread that comes back from it while the interpreter ends would abort the
    process. So that is waited for, up to `FAREWELL` more.

    :param patience_of: Seconds by phase.
    :param computes_in: The phase in which it does not rest.
    """
    current, used = "", processor_time(thread)
    began = moved = on_time = time.monotonic()
    while thread.is_alive():
        thread.join(LOOK)
        now, before, used = time.monotonic(), used, processor_time(thread)
        if phase() != current:
            current, began = phase(), now
        moved = now if used != before or current != computes_in else moved
        if now - began <= patience_of[current] and now - moved <= STANDS_STILL_AT_END:
            on_time = now
        elif not is_in_the_store(thread) or now - on_time > FAREWELL:
            return


def is_in_the_store(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename == store.__file__


def processor_time(thread: threading.Thread) -> str:
    """As the kernel counts it; always the same where it does not say."""
    try:
        return Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
    except (OSError, IndexError):
        return ""
