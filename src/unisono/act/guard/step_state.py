"""What is known at a step, what was usual of late, and why something should be done about it. W = workers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unisono.diagnose.statistics import median
from unisono.records.finding import Finding

WINDOW, LEAST = 64, 20
NEW_LEVEL = 20
"""So many spikes in a row are no spikes: the numbers live on another level now, and the history starts anew there."""

NORMAL = 1.4826
"""Standard deviations in a median distance to the median, of numbers that are normally distributed."""

DEVIATIONS = 3
"""Standard deviations above the median at which the usual ends."""

SMALL = 0.05
"""Distances are told in units of at least this share of the median and of the first one: a number that hardly moves
has hardly any deviation, and a loss near zero is still far below where it began."""

FARTHEST = 5
"""And of at least this part of the distance of the largest recent value."""


class UsualValues:
    """The last accepted values of a series."""

    def __init__(self, window: int = WINDOW, least: int = LEAST) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._least = least
        self._refused: deque[float] = deque(maxlen=NEW_LEVEL)
        self._first: float | None = None
        self._median: float | None = None
        self._end = self._unit = 0.0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def median(self) -> float | None:
        """`None` while too few values are known."""
        return self._median

    def ratio(self, value: float | None) -> float | None:
        """How many times the end of the usual range, which holds all recent values; `None` where that is not known."""
        if value is None or self._median is None or not math.isfinite(value) or self._end <= 0:
            return None
        return value / self._end

    def score(self, value: float | None) -> float | None:
        """How far above the median, in units of how far the values usually stray; `None` where that cannot be told."""
        if value is None or self._median is None or not math.isfinite(value):
            return None
        distance = value - self._median
        return distance / self._unit if self._unit > 0 else math.copysign(math.inf, distance) if distance else 0.0

    def accept(self, value: float | None) -> None:
        """An ordinary step's value. What is unknown or not finite is passed over."""
        if value is not None and math.isfinite(value):
            self._refused.clear()
            self._values.append(value)
            self._measure()

    def refuse(self, value: float | None) -> None:
        """A spike's value. It does not count, unless as many follow each other as make a new level."""
        if value is None or not math.isfinite(value):
            return
        self._refused.append(value)
        if len(self._refused) == NEW_LEVEL:
            self._values.clear()
            self._values.extend(self._refused)
            self._refused.clear()
            self._measure()

    def _measure(self) -> None:
        if len(self._values) < self._least:
            self._median = None
            return
        middle = median(self._values)
        self._median = middle
        self._first = middle if self._first is None else self._first
        end, largest = _end_of_usual(self._values, middle), max(self._values)
        # A model that leaves a plateau has gradients that grow a thousandfold in ten steps, each a little at a time.
        self._end = max(end, largest)
        self._unit = max(
            (end - middle) / DEVIATIONS,
            (largest - middle) / FARTHEST,
            SMALL * abs(middle),
            SMALL * abs(self._first),
        )


LARGEST_EXPONENT = 700.0
"""What `math.exp` takes."""


def _end_of_usual(values: deque[float], middle: float) -> float:
    if min(values) <= 0:
        return middle + DEVIATIONS * NORMAL * median([abs(value - middle) for value in values])
    distance = median([abs(math.log(value) - math.log(middle)) for value in values])
    return middle * math.exp(min(DEVIATIONS * NORMAL * distance, LARGEST_EXPONENT))


SPAN = 10
"""Steps over which spikes are counted."""

CLEARLY = 3.0
RISEN_FOR = 64
"""A loss of this score is unusual; where more than half of the workers have one at the same step, it is no accident of
one batch. Norms are then judged mildly for as long as the recent past is that from before."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A step when all workers have their averaged gradients and nobody has used them yet."""

    step: int
    loss_W: tuple[float | None, ...] = ()
    finite_W: tuple[bool | None, ...] = ()
    """Each worker's own loss and gradients before all-reduce, as far as known."""

    norm: float | None = None
    """Of the averaged gradient, without the loss scale; may be NaN or infinite."""

    scaled: bool = False
    """A loss scaler is at work, which skips what is not finite by itself."""

    norm_ratio: float | None = None
    """How many times the end of its usual range (`UsualValues.ratio`)."""

    loss_score_W: tuple[float | None, ...] = ()
    """How far above its recent median, in units of how far it usually strays (`UsualValues.score`)."""

    recent_norm: float | None = None
    """The median of the recent norms."""

    findings: tuple[Finding, ...] = ()
    restorable: tuple[int, ...] = ()
    """Steps of the healthy checkpoints that every worker holds, oldest first."""

    since_check: int = 0
    """Steps since the replicas were last compared in full."""

    spikes: int = 0
    """How many of the last 10 steps before this one were not finite or extreme."""

    risen: bool = False
    """The losses of most workers have just risen together: data have become harder, or the weights are bad already.
    Either way the cause is not this step."""

    ranks: tuple[int, ...] = ()
    """The launcher's numbers of the workers."""

    def rank(self, worker: int) -> int:
        return self.ranks[worker] if worker < len(self.ranks) else worker


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a row holds."""

    words: str
    ranks: tuple[int, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict)
    since: int | None = None
    """The step at which the trouble began, if that is not this one: a checkpoint to go back to has to be older."""

    seen: int | None = None
    """The last step it was seen at: what is older than the row's last action has been acted on."""

    argument: float | None = None
    """Of `clip`: what gradients are multiplied by."""


class Watch:
    """The recent past of a job, from which a step's situation is told."""

    def __init__(self, workers: int, ranks: Sequence[int] = ()) -> None:
        self.norm = UsualValues()
        self.loss_W = [UsualValues() for _ in range(workers)]
        self._ranks = tuple(ranks) or tuple(range(workers))
        self._spikes: deque[bool] = deque(maxlen=SPAN)
        self._risen_at: int | None = None

    def situation(
        self,
        step: int,
        loss_W: Sequence[float | None],
        finite_W: Sequence[bool | None],
        norm: float | None,
        *,
        scaled: bool = False,
        findings: Sequence[Finding] = (),
        restorable: Sequence[int] = (),
        since_check: int = 0,
    ) -> Situation:
        score_W = tuple(recent.score(loss) for recent, loss in zip(self.loss_W, loss_W, strict=True))
        if 2 * sum(score is not None and score > CLEARLY for score in score_W) > len(score_W):
            self._risen_at = step
        return Situation(
            step=step,
            loss_W=tuple(loss_W),
            finite_W=tuple(finite_W),
            norm=norm,
            scaled=scaled,
            norm_ratio=self.norm.ratio(norm),
            loss_score_W=score_W,
            recent_norm=self.norm.median,
            findings=tuple(findings),
            restorable=tuple(restorable),
            since_check=since_check,
            spikes=sum(self._spikes),
            risen=self._risen_at is not None and step - self._risen_at < RISEN_FOR,
            ranks=self._ranks,
        )

    def learn(self, situation: Situation, spike: Reason | None) -> None:
        """The step is over.

        :param spike: What was extreme or not finite about it (`Guard.spike`): that does not count as usual.
        """
        self._spikes.append(spike is not None)
        if spike is None:
            self.norm.accept(situation.norm)
        elif "norm_ratio" in spike.evidence:
            self.norm.refuse(situation.norm)
        scored = zip(self.loss_W, situation.loss_W, situation.loss_score_W, strict=True)
        for recent, loss, score in scored:
            # Of a spike's losses only those count that are usual by themselves.
            if spike is None or score is None or score <= CLEARLY:
                recent.accept(loss)
            else:
                recent.refuse(loss)
