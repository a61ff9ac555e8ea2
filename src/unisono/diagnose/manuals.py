"""The manuals' literal thresholds, for whoever asks for them: our own rules do not use them.

Counted reading by reading, as they are written. "Near zero" has no number there; 0.1 stands for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from unisono.common.errors import UserError
from unisono.records import StepRecord

VARIABLE, NAME = "UNISONO_THRESHOLDS", "manuals"
PAST = 100
NEAR_ZERO, HIGH, ALL_EQUAL = 0.1, 0.5, 0.99
SPIKE, VANISHED = 2.0, 1e-5


@dataclass(frozen=True, slots=True)
class Threshold:
    pattern: str
    """As the manual calls it."""

    code: str
    """Of our own rule for the pattern."""

    words: str
    alarms: int
    """In a million steps of healthy training, as docs/evidence/healthy/detection.json counts them."""


DROP = Threshold("Sudden Drop", "UN406", "mean cosine below 0.1, above 0.5 within the last 100 readings", 68_701)
LOW = Threshold("Persistently Low", "UN405", "mean cosine below 0.1", 250_701)
EQUAL = Threshold("Abnormally High", "UN101", "mean cosine above 0.99", 0)
EXPLOSION = Threshold(
    "Gradient Explosion", "UN401", "gradient norm (GSS) above 2 times its mean over 100 readings, or NaN", 14_108
)
VANISHING = Threshold("Gradient Vanishing", "UN402", "gradient norm below 1e-5", 3)
CRITICAL = Threshold(
    "Critical Warning",
    "UN410",
    "mean loss lower, loss dispersion higher, over 50 steps than over the 50 before",
    146_989,
)
THRESHOLDS = (DROP, LOW, EQUAL, EXPLOSION, VANISHING, CRITICAL)

WITHOUT_NUMBER = {
    "Gradual Divergence (direction)": "UN407",
    "High Dispersion": "UN411",
    "Persistent Oscillation": "UN403",
    "Severe Spikes": "UN408",
    "Gradual Divergence (loss)": "UN409",
    "Single-point Anomaly": "UN104",
    "Near-Zero Constant": "UN101",
}
"""Patterns for which the manuals give no threshold, and our rules for them."""


@dataclass(slots=True)
class Crossings:
    """How often a threshold was crossed."""

    judged: int = 0
    crossed: int = 0
    first_step: int | None = None
    last_step: int | None = None
    first_value: float | None = None

    def add(self, step: int, value: float, crosses: bool) -> None:
        self.judged += 1
        if crosses:
            if self.first_step is None:
                self.first_step, self.first_value = step, value
            self.crossed, self.last_step = self.crossed + 1, step


@dataclass
class ManualThresholds:
    crossings: dict[Threshold, Crossings] = field(default_factory=lambda: {one: Crossings() for one in THRESHOLDS})
    _cosines: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    _spreads: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))

    def see(self, record: StepRecord) -> None:
        if record.cos_mean is not None:
            self._direction(record.step, record.cos_mean)
        if record.grad_norm is not None:
            self._norm(record.step, record.grad_norm)
        if record.loss_mean is not None and record.loss_std is not None:
            self._loss(record.step, record.loss_mean, record.loss_std)

    def as_dicts(self) -> list[dict[str, Any]]:
        return [
            {"pattern": one.pattern, "code": one.code, "threshold": one.words, **asdict(found)}
            | {"healthy_alarms_per_million_steps": one.alarms}
            for one, found in self.crossings.items()
        ]

    def _direction(self, step: int, cosine: float) -> None:
        low = cosine < NEAR_ZERO
        self.crossings[LOW].add(step, cosine, low)
        self.crossings[EQUAL].add(step, cosine, cosine > ALL_EQUAL)
        self.crossings[DROP].add(step, cosine, low and max(self._cosines, default=0.0) > HIGH)
        self._cosines.append(cosine)

    def _norm(self, step: int, norm: float) -> None:
        if not math.isfinite(norm):
            self.crossings[EXPLOSION].add(step, norm, True)
            return
        if len(self._norms) == PAST:
            mean = sum(self._norms) / PAST
            self.crossings[EXPLOSION].add(step, norm / mean if mean else math.inf, norm > SPIKE * mean)
        self.crossings[VANISHING].add(step, norm, norm < VANISHED)
        self._norms.append(norm)

    def _loss(self, step: int, loss: float, spread: float) -> None:
        if len(self._losses) == PAST:
            before, after = _halves(self._spreads)
            loss_before, loss_after = _halves(self._losses)
            crosses = loss_after < loss_before and after > before
            self.crossings[CRITICAL].add(step, after / before if before else math.inf, crosses)
        self._losses.append(loss)
        self._spreads.append(spread)


def _halves(values: Sequence[float]) -> tuple[float, float]:
    ordered = list(values)
    return sum(ordered[: PAST // 2]), sum(ordered[PAST // 2 :])


def thresholds_named(name: str) -> str:
    """The value of `--thresholds`, checked."""
    if name != NAME:
        raise UserError(f"`--thresholds` should be `{NAME}`. Found `{name}`. Write: --thresholds {NAME}")
    return name


def asked_for(environment: Mapping[str, str]) -> bool:
    return environment.get(VARIABLE) == NAME


def about(code: str) -> list[str]:
    """What the manuals' thresholds for a rule's patterns are worth, in sentences."""
    told = [
        f"{one.pattern}: {one.words}. On healthy training it alarms at {one.alarms:,} of a million steps."
        for one in THRESHOLDS
        if one.code == code
    ]
    return told + [f"{one}: the manual gives no number." for one, own in WITHOUT_NUMBER.items() if own == code]
