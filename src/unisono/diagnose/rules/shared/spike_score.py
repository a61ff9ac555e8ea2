"""The gradient norm manual's spike score (GSS), counted for a remark."""

from __future__ import annotations

import math
from collections import deque

from unisono.diagnose.manuals import PAST, SPIKE


class SpikeScore:
    """Each norm over the mean of the hundred readings before it."""

    def __init__(self) -> None:
        self.spikes = self._judged = 0
        self._past: deque[float] = deque(maxlen=PAST)
        self.largest, self._largest_at, self._last_at = 0.0, 0, 0

    def start_anew(self) -> None:
        """Norms before and after cannot be compared; what was counted stays."""
        self._past.clear()

    def add(self, step: int, norm: float) -> None:
        if not math.isfinite(norm):
            return
        if len(self._past) == PAST:
            self._judge(step, norm)
        self._past.append(norm)

    def _judge(self, step: int, norm: float) -> None:
        self._judged += 1
        # Summed anew: a running sum loses all small norms to a huge one, and does not get them back when it leaves.
        mean = sum(self._past) / PAST
        score = norm / mean if mean > 0 else 0.0
        if score <= SPIKE:
            return
        self.spikes, self._last_at = self.spikes + 1, step
        if score > self.largest:
            self.largest, self._largest_at = score, step

    def remark(self) -> str:
        """Empty without a spike."""
        if not self.spikes:
            return ""
        return (
            f"GSS (gradient norm over its mean in the {PAST} readings before) above {SPIKE:g} at {self.spikes:,} of "
            f"{self._judged:,} readings: largest {self.largest:.3g} at step {self._largest_at:,}, last at step "
            f"{self._last_at:,}"
        )
