"""UN104: one batch of one worker was extremely off, and the next one was not."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from unisono.history import HARD, LEARNT, gaps_to_others, median, scatter
from unisono.records import BatchRecord, StepRecord
from unisono.rules._scene import Scene, spoken
from unisono.rules._statistical import Statistical, logs

CALM = 4.0
LEAST = math.log(2)
LARGE = math.log(5)
"""From this factor on, of loss and norm together, one batch is a warning."""

PAST = 50


@dataclass(frozen=True, slots=True)
class Shock:
    step: int
    worker: int
    factor_by_name: dict[str, float]


class ToxicBatch(Statistical):
    """A single batch of one worker was extreme"""

    code, slug, severity = "UN104", "toxic-batch", "warning"
    pattern = "Single-point Anomaly; Toxic/Bad Batch"
    source = "loss dispersion manual, section 4"
    meaning = (
        "At one step, one worker's loss or gradient norm was more than twice that of the others, and more than ten "
        "times as far from the others' median and from its own last 50 readings as is usual in this run; at the next "
        "reading it was back. That is what a corrupted, mislabelled or extremely long sample looks like. A remark as "
        "long as it is one of them; a warning if loss and norm were both more than five times too large."
    )
    needs = "two or more workers with positive losses or gradient norms, and 16 readings"
    causes = {"bad-sample": "the batch holds a corrupted, mislabelled, extremely long or otherwise rare sample"}
    remedies = {
        "bad-sample": (
            "look at the samples of that batch (`unisono batches RUN` lists them) and filter such data",
            "clip gradients (torch.nn.utils.clip_grad_norm_), so that one batch cannot throw the weights far off",
        )
    }
    forgets_at_jumps = False

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._batches: deque[BatchRecord] = deque(maxlen=16)

    def forget(self) -> None:
        self._series = {"loss": Series(), "norm": Series()}
        self._suspect: Shock | None = None
        self._calm = True

    def on_batch(self, record: BatchRecord, scene: Scene) -> None:
        self._batches.append(record)

    def hear(self, record: StepRecord, scene: Scene) -> None:
        heard = [
            name
            for name, value_W in (("loss", logs(record.loss_W)), ("norm", logs(record.norm_W)))
            if value_W is not None and self._series[name].add(value_W)
        ]
        if not heard:
            return
        suspect, self._suspect = self._suspect, None
        # Scores are asked for only where they can matter: most steps are quiet.
        quiet = all(self._series[name].quiet for name in heard)
        calm = (quiet and suspect is None) or all(self._series[name].calm for name in heard)
        if not calm and self._calm:
            self._suspect = self._shock(record.step, heard)
        self._calm = calm
        if suspect is not None and calm:
            self._accuse(suspect, scene)
        elif calm:
            self.passed(record.step)

    def _shock(self, step: int, heard: list[str]) -> Shock | None:
        shocked = {name: worker for name in heard if (worker := self._series[name].shocked()) is not None}
        if len(set(shocked.values())) != 1:
            return None
        worker = next(iter(shocked.values()))
        return Shock(step, worker, {name: self._series[name].factor(worker) for name in shocked})

    def _accuse(self, shock: Shock, scene: Scene) -> None:
        self._count += 1
        factors = shock.factor_by_name
        grave = len(factors) == 2 and min(factors.values()) > math.exp(LARGE)
        told = " and ".join(f"{name} was {factor:.3g} times" for name, factor in factors.items())
        evidence: dict[str, float | int | str] = {f"{name}_to_others": round(x, 3) for name, x in factors.items()}
        rank = scene.ranks((shock.worker,))[0]
        indices = next((b.indices for b in self._batches if (b.step, b.rank) == (shock.step, rank) and b.indices), ())
        if indices:
            evidence["indices"] = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        self.report(
            shock.step,
            scene,
            why=f"{spoken((rank,))}'s {told} the others' at step {shock.step}, and back at the next reading",
            causes={"bad-sample": 0.7},
            workers=(shock.worker,),
            severity="warning" if grave else "info",
            evidence=evidence | {"batches": self._count},
        )


class Series:
    """One signal of all workers, against each other and against each one's past."""

    def __init__(self) -> None:
        self._past_TW: deque[list[float]] = deque(maxlen=PAST)
        self._now_W: list[float] = []
        self._gap_W: list[float] = []

    def add(self, value_W: list[float]) -> bool:
        """Whether enough was heard before to judge."""
        if self._now_W:
            self._past_TW.append(self._now_W)
        if len(self._now_W) != len(value_W):
            self._past_TW.clear()
        self._now_W, self._gap_W = value_W, gaps_to_others(value_W)
        return len(self._past_TW) >= LEARNT

    @property
    def quiet(self) -> bool:
        return max(self._gap_W) <= LEAST

    @property
    def calm(self) -> bool:
        return all(self._own_score(worker) < CALM for worker in range(len(self._now_W)))

    def factor(self, worker: int) -> float:
        return math.exp(self._gap_W[worker])

    def shocked(self) -> int | None:
        """The one worker far above both the others and its own past; all the others are as usual."""
        worst = max(range(len(self._now_W)), key=self._gap_W.__getitem__)
        others = [worker for worker in range(len(self._now_W)) if worker != worst]
        gap = self._gap_W[worst]
        usual = scatter([past_gap for past_W in self._past_TW for past_gap in gaps_to_others(past_W)])
        if gap <= max(LEAST, HARD * usual) or self._own_score(worst) <= HARD:
            return None
        return worst if all(self._own_score(worker) < CALM for worker in others) else None

    def _own_score(self, worker: int) -> float:
        own = [past_W[worker] for past_W in self._past_TW]
        return (self._now_W[worker] - median(own)) / max(scatter(own), LEAST / HARD)
