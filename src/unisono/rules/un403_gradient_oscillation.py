"""UN403: the gradient norm swings up and down at every step, far more than it used to."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise

from unisono.history import Window, median
from unisono.records import StepRecord
from unisono.rules._scene import Scene
from unisono.rules._statistical import Statistical

RECENT = 50
PAST = 200
EVERY = 10
ALTERNATING = 0.9
"""Share of changes of opposite sign to the one before; two thirds for independent numbers."""

GROWN = 3.0
LARGE = math.log(1.5)


class GradientOscillation(Statistical):
    """The gradient norm swings up and down from step to step"""

    code, slug, severity = "UN403", "gradient-oscillation", "warning"
    pattern = "Persistent Oscillation"
    source = "global gradient norm manual, section 3"
    meaning = (
        "Over the last 50 consecutive steps the gradient norm has gone up and down in turn at nine of ten steps, "
        "usually by more than half, and three times as much as in the 200 steps before. Noise alone turns at two of "
        "three steps and does not grow: the steps jump from one side of a valley to the other."
    )
    needs = "250 consecutive readings of the gradient norm"
    causes = {
        "learning-rate": "the learning rate is at the edge of what is stable",
        "small-batch": "batches are small, and few rare samples make the norm jump",
    }
    remedies = {
        "learning-rate": ("lower the learning rate (try half), or lengthen its warm-up",),
        "small-batch": ("use larger batches or accumulate gradients over more of them",),
    }
    explains = ("UN406",)

    def forget(self) -> None:
        self._recent: deque[float] = deque()
        self._past = Window(PAST)
        self._last: tuple[int, float] | None = None
        self._changes = 0

    def hear(self, record: StepRecord, scene: Scene) -> None:
        if record.grad_norm is None or record.grad_norm <= 0:
            return
        norm = math.log(record.grad_norm)
        last, self._last = self._last, (record.step, norm)
        if last is None or record.step != last[0] + 1:
            self._recent.clear()
            return
        self._recent.append(norm - last[1])
        self._changes += 1
        ready = self._past.full and len(self._recent) >= RECENT
        swinging = ready and self._swings()
        if swinging and self._changes % EVERY == 0:
            self._accuse(record, scene)
        elif ready and not swinging:
            self.passed(record.step)
        if len(self._recent) > RECENT:
            oldest = abs(self._recent.popleft())
            if not swinging:
                self._past.add(oldest)

    def _swings(self) -> bool:
        # The newest changes first: this is asked at every step, and nearly always they are small.
        if abs(self._recent[-1]) < LARGE and abs(self._recent[-2]) < LARGE:
            return False
        size = self._size()
        turns = sum(earlier * later < 0 for earlier, later in pairwise(self._recent))
        return size > max(LARGE, GROWN * self._past.median) and turns >= ALTERNATING * (len(self._recent) - 1)

    def _size(self) -> float:
        return median([abs(change) for change in self._recent])

    def _accuse(self, record: StepRecord, scene: Scene) -> None:
        now, before = math.exp(self._size()), math.exp(self._past.median)
        self.report(
            record.step,
            scene,
            why=f"the gradient norm goes up and down by a factor of {now:.3g} at every step (before: {before:.3g})",
            causes={"learning-rate": 0.7, "small-batch": 0.3},
            evidence={"swing": round(now, 3), "swing_before": round(before, 3)},
        )
