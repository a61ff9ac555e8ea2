"""What unisono says on stderr while training runs: few lines, each once a minute at most."""

from __future__ import annotations

import sys
import time

QUIET_SECONDS = 60.0


class Console:
    def __init__(self, speaker: str = "unisono") -> None:
        self._speaker = speaker
        self._said: dict[str, float] = {}

    def say(self, text: str) -> None:
        try:
            # On a terminal a progress bar may stand in the line; it is drawn again by its owner.
            clear = "\r\x1b[K" if sys.stderr.isatty() else ""
            sys.stderr.write(f"{clear}{self._speaker}: {text}\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            pass

    def complain(self, text: str) -> None:
        """Says it unless the same kind of thing (the text up to the first bracket) was said in the last minute."""
        kind, now = text.partition("(")[0], time.monotonic()
        if now - self._said.get(kind, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._said[kind] = now
            self.say(text)
