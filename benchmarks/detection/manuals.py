"""What the manuals' fixed thresholds would have said of the same steps, counted step by step.

Where a manual gives no number ("large variance"), the usual rule of thumb stands for it.
"""

from __future__ import annotations

from collections import Counter, deque

from unisono.diagnose.statistics import median, scatter
from unisono.records import StepRecord

PAST = 100
NEAR_ZERO, HIGH, ALL_EQUAL = 0.1, 0.5, 0.99
SPIKE, VANISHED = 2.0, 1e-5
FAR, ODD = 3.0, 3.5

RULES = {
    "persistently low": "mean cosine below 0.1",
    "abnormally high": "mean cosine above 0.99",
    "sudden drop": "mean cosine below 0.1, above 0.5 within the last 100 readings",
    "explosion": "gradient norm above 2 times its mean over 100 readings",
    "vanishing": "gradient norm below 1e-5",
    "high dispersion": "a worker's norm further from the median than 3.5 times the median distance",
    "severe spikes": "loss dispersion above its mean over 100 steps by 3 standard deviations",
    "critical warning": "mean loss lower, loss dispersion higher, than in the 50 steps before the last 50",
}


class Manuals:
    def __init__(self) -> None:
        self.alarms: Counter[str] = Counter()
        """Steps at which a rule would have alarmed."""

        self.steps = 0
        self._cosines: deque[float] = deque(maxlen=PAST)
        self._norms: deque[float] = deque(maxlen=PAST)
        self._spreads: deque[float] = deque(maxlen=PAST)
        self._losses: deque[float] = deque(maxlen=PAST)

    def see(self, record: StepRecord) -> None:
        self.steps += 1
        if record.cos_mean is not None:
            self._direction(record.cos_mean)
        if record.grad_norm is not None:
            self._norm(record.grad_norm)
        norms = [norm for norm in record.norm_W if norm is not None]
        if len(norms) > 2:
            apart = scatter(norms)
            self.alarms["high dispersion"] += any(abs(norm - median(norms)) > ODD * apart for norm in norms)
        if record.loss_mean is not None and record.loss_std is not None:
            self._loss(record.loss_mean, record.loss_std)

    def _direction(self, cosine: float) -> None:
        low = cosine < NEAR_ZERO
        self.alarms["persistently low"] += low
        self.alarms["abnormally high"] += cosine > ALL_EQUAL
        self.alarms["sudden drop"] += low and max(self._cosines, default=0.0) > HIGH
        self._cosines.append(cosine)

    def _norm(self, norm: float) -> None:
        if len(self._norms) == PAST:
            self.alarms["explosion"] += norm > SPIKE * sum(self._norms) / PAST
        self.alarms["vanishing"] += norm < VANISHED
        self._norms.append(norm)

    def _loss(self, loss: float, spread: float) -> None:
        if len(self._spreads) == PAST:
            mean = sum(self._spreads) / PAST
            deviation = (sum((value - mean) ** 2 for value in self._spreads) / PAST) ** 0.5
            self.alarms["severe spikes"] += spread > mean + FAR * deviation
            self.alarms["critical warning"] += _falls(self._losses) and _falls([-value for value in self._spreads])
        self._spreads.append(spread)
        self._losses.append(loss)


def _falls(values: deque[float] | list[float]) -> bool:
    half = len(values) // 2
    ordered = list(values)
    return sum(ordered[half:]) < sum(ordered[:half])
