"""UN407: the workers' directions agree less and less, while the loss no longer falls."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from unisono.diagnose.rules.shared.recent_values import deviation
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median
from unisono.records import StepRecord

SETTLED = 60
READINGS, STEPS = 10, 200
"""A stretch has at least so many of both: readings come at every step, or rarely, or in bursts."""

STRETCHES = 6
LENGTHS = (1, 2, 4, 8, 16)
"""Short stretches that are joined to longer ones: what takes days is seen in those."""

HALVED = 0.5
FALLING = 0.02
CLEAR = 8.0


@dataclass(frozen=True, slots=True)
class CosineStretch:
    cosine: float
    loss: float
    variance: float
    """Of the cosine's error."""


def _joined(parts: Sequence[CosineStretch]) -> CosineStretch:
    count = len(parts)
    return CosineStretch(
        sum(part.cosine for part in parts) / count,
        sum(part.loss for part in parts) / count,
        sum(part.variance for part in parts) / count**2,
    )


class ConsistencyDecline(Statistical):
    """The workers' gradients agree less and less"""

    code, slug, severity = "UN407", "consistency-decline", "warning"
    pattern = "Gradual Divergence (direction)"
    source = "direction consistency manual, section 3"
    meaning = (
        "Over six stretches (of 200 steps with 10 readings or more, up to sixteen times that) the mean cosine between "
        "the workers' gradients fell from each to the next, to less than half, while the loss did not fall. Agreement "
        "also falls as a model learns, but then the loss falls with it. A remark as long as the workers' weights were "
        "not found to differ; a warning if they were."
    )
    correction = (
        "The manual blames precision drift. Rounding alone does not make replicas differ where all apply the same "
        "averaged gradient; whether they do is compared bit for bit (UN301) and need not be guessed from a cosine."
    )
    needs = "120 readings of the workers' directions with the loss, over 1,200 steps"
    causes = {
        "replicas-differ": "the workers' weights drift apart",
        "plateau": "little is left to learn at this learning rate, so noise takes a growing share",
        "data-drift": "the data of the workers become less alike",
    }
    remedies = {
        "replicas-differ": ("broadcast the weights of one rank, and see UN301 for the parameter that differed first",),
        "plateau": ("lower the learning rate or use larger batches, if the loss should still fall",),
        "data-drift": ("check whether the order of the data differs between workers over the epoch",),
    }

    def forget(self) -> None:
        self._readings = 0
        self._newest: list[tuple[int, float, float]] = []
        self._stretches: deque[CosineStretch] = deque(maxlen=STRETCHES * LENGTHS[-1])

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if record.cos_mean is None or record.loss_mean is None:
            return
        self._readings += 1
        if self._readings <= SETTLED:
            return
        self._newest.append((record.step, record.cos_mean, record.loss_mean))
        if len(self._newest) < READINGS or record.step - self._newest[0][0] < STEPS - 1:
            return
        _, cosines, losses = zip(*self._newest, strict=True)
        self._newest = []
        error = 1.25 * deviation(cosines) / math.sqrt(len(cosines))
        self._stretches.append(CosineStretch(median(cosines), median(losses), error**2))
        known = [length for length in LENGTHS if STRETCHES * length <= len(self._stretches)]
        declining = [stretches for stretches in map(self._joined, known) if _declines(stretches)]
        if declining:
            self._accuse(record, run_state, declining[0])
        elif known:
            self.passed(record.step)

    def _joined(self, length: int) -> list[CosineStretch]:
        """The last six stretches, each made of `length` short ones."""
        parts = list(self._stretches)[-STRETCHES * length :]
        return [_joined(parts[at : at + length]) for at in range(0, len(parts), length)]

    def _accuse(self, record: StepRecord, run_state: RunState, stretches: Sequence[CosineStretch]) -> None:
        first, last = stretches[0].cosine, stretches[-1].cosine
        differ, rises = run_state.comparable.replicas_differ, _loss_change(stretches) > FALLING
        causes = {"data-drift": 0.5, "plateau": 0.3} if rises else {"plateau": 0.4, "data-drift": 0.4}
        self.report(
            record.step,
            run_state,
            why=(
                f"the mean cosine between workers fell steadily from {first:.3g} to {last:.3g} "
                f"over {STRETCHES} stretches, and the loss did not fall"
            ),
            causes={"replicas-differ": 0.9} if differ else causes,
            severity="warning" if differ else "info",
            evidence={"cos_before": round(first, 4), "cos_now": round(last, 4)},
        )


def _declines(stretches: Sequence[CosineStretch]) -> bool:
    first, last = stretches[0], stretches[-1]
    falling = all(later.cosine < earlier.cosine for earlier, later in pairwise(stretches))
    clear = first.cosine - last.cosine > CLEAR * math.sqrt(last.variance)
    return falling and last.cosine < HALVED * first.cosine and clear and _loss_change(stretches) >= -FALLING


def _loss_change(stretches: Sequence[CosineStretch]) -> float:
    """As a share of the loss before."""
    first, last = stretches[0].loss, stretches[-1].loss
    return (last - first) / abs(first) if first else 0.0
