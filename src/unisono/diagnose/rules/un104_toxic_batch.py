"""UN104: one batch of one worker was extremely off, and the next one was not."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from unisono.diagnose.rules.shared.guarded_steps import tell_what_was_kept_away
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import LEARNT, median, median_of_others, scatter
from unisono.records import BatchRecord, DecisionRecord, Floats, StepRecord

CALM = 4.0
FAR = 6.0
TWICE = math.log(2)
UNIT = TWICE / 10
"""Smaller noise than this is not believed."""

LARGE = 5.0
"""From this factor on, of loss and norm together, one batch may be a warning."""

PAST = 50
LEARNING = 0.9
"""Share of the first losses below which something was learnt."""

FIRST_LOSSES = 5


@dataclass(frozen=True, slots=True)
class Shock:
    step: int
    worker: int
    factor_by_name: dict[str, float]
    extreme: bool
    """In all that was heard; and the loss is far worse than an untrained model's."""


class ToxicBatch(Statistical):
    """A single batch of one worker was extreme"""

    code, slug, severity = "UN104", "toxic-batch", "warning"
    pattern = "Single-point Anomaly; Toxic/Bad Batch"
    source = "loss dispersion manual, section 4"
    meaning = (
        "At one step, one worker's loss or gradient norm was more than twice that of the others (their median), more "
        "than twice as far from them as any worker's in the last 50 readings, and as far above its own last 50; at the "
        "next reading it was back. That is what a corrupted, mislabelled or extremely long sample looks like. A remark "
        "as long as it is one of them; a warning if loss and norm (the loss, at a step that is not heard) were more "
        "than five times the others' and the loss more than five times the first losses of the run (worse than an "
        "untrained model by far), while the others and the steps before show that something had been learnt, and the "
        "learning rate has not suddenly risen in the last 50 steps."
    )
    needs = "two or more workers with positive losses or gradient norms, and 16 readings"
    causes = {"bad-sample": "the batch holds a corrupted, mislabelled, extremely long or otherwise rare sample"}
    remedies = {
        "bad-sample": (
            "look at the samples of that batch (`unisono batches RUN` lists them) and filter such data; texts with a "
            "perplexity filter: score every sample with a small language model and drop those it finds least likely",
            "clip gradients (torch.nn.utils.clip_grad_norm_), so that one batch cannot throw the weights far off",
            "have such batches skipped on all workers as they come: unisono run --guard",
        )
    }
    explains = ("UN401",)
    forgets_at_jumps = False

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._batches: deque[BatchRecord] = deque(maxlen=16)

    def forget(self) -> None:
        self._losses, self._norms = SignalSeries(), SignalSeries()
        self._first: list[float] = []
        self._suspect: Shock | None = None

    def on_decision(self, record: DecisionRecord, run_state: RunState) -> None:
        tell_what_was_kept_away(self, record, run_state, "loss_score", {"bad-sample": 0.7})

    def on_batch(self, record: BatchRecord, run_state: RunState) -> None:
        self._batches.append(record)

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if len(self._first) < FIRST_LOSSES and record.loss_mean is not None:
            self._first.append(record.loss_mean)
        loud = self._losses.add(record.loss_W)
        loud = (self._norms.add(record.norm_W) if record.norm_W else False) or loud
        suspect = self._suspect
        if suspect is None and not loud:
            if self._losses.ready or self._norms.ready:
                self.passed(record.step)
            return
        shock = self._shock(record) if loud else None
        # Whoever stays away from the others is no single batch.
        if suspect is not None and (shock is None or shock.worker != suspect.worker):
            self._accuse(suspect, run_state)
        self._suspect = shock if suspect is None else None
        if self._suspect is not None:
            self._losses.leave_out()
            self._norms.leave_out()

    def _shock(self, record: StepRecord) -> Shock | None:
        series = {"loss": self._losses, "norm": self._norms} if record.norm_W else {"loss": self._losses}
        shocked = {name: worker for name, one in series.items() if (worker := one.shocked()) is not None}
        if len(set(shocked.values())) != 1:
            return None
        worker = next(iter(shocked.values()))
        factors = {name: one.ratio for name, one in series.items() if one.ratio > 2.0 and one.largest == worker}
        # At a step that is not heard the loss alone has to tell.
        told_by_all = len(factors) == len(series)
        return Shock(record.step, worker, factors, self._is_worse_than_new(record, worker) and told_by_all)

    def _is_worse_than_new(self, record: StepRecord, worker: int) -> bool:
        """Of this worker alone: in a run that falls apart all losses are, and one batch is not to blame."""
        known = [loss or 0.0 for loss in record.loss_W]
        first = median(self._first) if self._first else 0.0
        others = max(median_of_others(known, worker), self._losses.usual)
        return known[worker] > LARGE * first > 0 and others < LEARNING * first

    def _accuse(self, shock: Shock, run_state: RunState) -> None:
        self._count += 1
        factors = shock.factor_by_name
        grave = shock.extreme and min(factors.values()) > LARGE and not run_state.comparable.turmoil
        told = " and ".join(f"{name} was {factor:.3g} times" for name, factor in factors.items())
        evidence: dict[str, float | int | str] = {f"{name}_to_others": round(x, 3) for name, x in factors.items()}
        rank = run_state.ranks((shock.worker,))[0]
        indices = next((b.indices for b in self._batches if (b.step, b.rank) == (shock.step, rank) and b.indices), ())
        if indices:
            evidence["indices"] = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        self.report(
            shock.step,
            run_state,
            why=f"{spoken((rank,))}'s {told} the others' at step {shock.step}, and back at the next reading",
            causes={"bad-sample": 0.7},
            workers=(shock.worker,),
            severity="warning" if grave else "info",
            evidence=evidence | {"batches": self._count},
        )


class SignalSeries:
    """One signal of all workers, against each other and against each one's past. T = readings, W = workers."""

    def __init__(self) -> None:
        self._past_TW: deque[Floats] = deque(maxlen=PAST)
        self._ratio_T: deque[float] = deque(maxlen=PAST)
        self._now_W: Floats = ()
        self._readings = 0
        self._highest = 1.0
        """Of the last 50 to 100 ratios."""

        self.ready = False
        self.ratio = 1.0
        """The largest value over the median of the others."""

    def add(self, value_W: Floats) -> bool:
        """Whether somebody may stand out: asked at every step, answered with few comparisons."""
        if self._now_W:
            self._learn()
        if len(value_W) < 2 or None in value_W:
            return False
        least, largest = min(value_W), max(value_W)  # type: ignore[type-var]
        if not 0 < least <= largest < math.inf:  # type: ignore[operator]
            return False
        self._now_W = value_W
        # Nobody is twice the others' median who is not twice the smallest.
        self.ratio = 1.0 if largest <= 2.0 * least else _ratio(value_W)  # type: ignore[operator]
        return self.ready and self.ratio > 2.0 * self._highest

    def _learn(self) -> None:
        self._past_TW.append(self._now_W)
        self._ratio_T.append(self.ratio)
        self._now_W = ()
        self._readings += 1
        if self.ratio > self._highest:
            self._highest = self.ratio
        elif self._readings % PAST == 0:
            self._highest = max(self._ratio_T)
        self.ready = self._readings >= LEARNT

    @property
    def usual(self) -> float:
        """The median of all workers' last readings."""
        return median([value or 0.0 for past_W in self._past_TW for value in past_W])

    @property
    def largest(self) -> int:
        """The worker with the largest value; -1 where nobody was heard."""
        return max(range(len(self._now_W)), key=lambda worker: self._now_W[worker] or 0.0, default=-1)

    def leave_out(self) -> None:
        """The newest reading is not to be learnt from."""
        self._now_W = ()

    def shocked(self) -> int | None:
        """The one worker far above both the others and its own past; all the others are as usual."""
        if not self._now_W or not self.ready or self.ratio <= 2.0 * self._highest:
            return None
        usual = [math.log(ratio) for ratio in self._ratio_T]
        if math.log(self.ratio) <= median(usual) + FAR * max(scatter(usual), UNIT):
            return None
        score_W = [self._own_score(worker) for worker in range(len(self._now_W))]
        worst = self.largest
        others = [score for worker, score in enumerate(score_W) if worker != worst]
        return worst if score_W[worst] > FAR and max(others) < CALM else None

    def _own_score(self, worker: int) -> float:
        own = [math.log(value) for past_W in self._past_TW if (value := past_W[worker])]
        return (math.log(self._now_W[worker] or 1.0) - median(own)) / max(scatter(own), UNIT)


def _ratio(value_W: Floats) -> float:
    """The largest value over the median of the others."""
    ordered: list[float] = sorted(value_W)  # type: ignore[arg-type]
    count = len(ordered) - 1
    return ordered[-1] / ((ordered[(count - 1) // 2] + ordered[count // 2]) / 2)
