"""What the manuals' thresholds would have said of the same steps, counted step by step.

Where a manual gives no number ("large variance"), a rule of thumb stands for it here, and only here.
"""

from __future__ import annotations

from collections import Counter, deque

from unisono.diagnose.manuals import PAST, THRESHOLDS, ManualThresholds
from unisono.diagnose.statistics import median, scatter
from unisono.records import StepRecord

FAR, ODD = 3.0, 3.5

DISPERSION, SPIKES = "High Dispersion", "Severe Spikes"
RULES = {
    **{one.pattern: one.words for one in THRESHOLDS},
    DISPERSION: "(no number) a worker's norm further from the median than 3.5 times the median distance",
    SPIKES: "(no number) loss dispersion above its mean over 100 steps by 3 standard deviations",
}


class Manuals:
    def __init__(self) -> None:
        self.steps = 0
        self._literal = ManualThresholds()
        self._by_thumb: Counter[str] = Counter({DISPERSION: 0, SPIKES: 0})
        self._spreads: deque[float] = deque(maxlen=PAST)

    @property
    def alarms(self) -> Counter[str]:
        """Steps at which each would have alarmed."""
        literal = {one.pattern: found.crossed for one, found in self._literal.crossings.items()}
        return Counter({**literal, **self._by_thumb})

    def see(self, record: StepRecord) -> None:
        self.steps += 1
        self._literal.see(record)
        norms = [norm for norm in record.norm_W if norm is not None]
        if len(norms) > 2:
            apart = scatter(norms)
            self._by_thumb[DISPERSION] += any(abs(norm - median(norms)) > ODD * apart for norm in norms)
        if record.loss_std is not None:
            self._spread(record.loss_std)

    def _spread(self, spread: float) -> None:
        if len(self._spreads) == PAST:
            mean = sum(self._spreads) / PAST
            deviation = (sum((value - mean) ** 2 for value in self._spreads) / PAST) ** 0.5
            self._by_thumb[SPIKES] += spread > mean + FAR * deviation
        self._spreads.append(spread)
