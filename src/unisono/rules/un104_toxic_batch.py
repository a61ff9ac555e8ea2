"""UN104: one batch of one worker was extremely off, and the next one was not."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from unisono.history import HARD, LEARNT, Peers, Window
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
        calm = all(self._series[name].calm for name in heard)
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
        return Shock(step, worker, {name: math.exp(self._series[name].gap(worker)) for name in shocked})

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
        self._peers: Peers | None = None
        self._past_W: list[Window] = []
        self._own_W: list[float] = []

    def add(self, value_W: list[float]) -> bool:
        """Whether enough was heard before to judge."""
        if self._peers is None or len(self._past_W) != len(value_W):
            self._peers = Peers(len(value_W), LEAST)
            self._past_W = [Window(PAST) for _ in value_W]
        self._peers.add(value_W)
        ready = len(self._past_W[0]) >= LEARNT
        if ready:
            self._own_W = [_score(past, value) for past, value in zip(self._past_W, value_W, strict=True)]
        for past, value in zip(self._past_W, value_W, strict=True):
            past.add(value)
        return ready

    @property
    def calm(self) -> bool:
        return max(self._own_W) < CALM

    def gap(self, worker: int) -> float:
        return 0.0 if self._peers is None else self._peers.gap_W[worker]

    def shocked(self) -> int | None:
        """The one worker far above both the others and its own past; all the others are as usual."""
        worst = max(range(len(self._own_W)), key=self._own_W.__getitem__)
        others = [score for worker, score in enumerate(self._own_W) if worker != worst]
        peers = self._peers
        if peers is None or self._own_W[worst] <= HARD or max(others) >= CALM:
            return None
        return worst if peers.score_W[worst] > HARD and self.gap(worst) > LEAST else None


def _score(past: Window, value: float) -> float:
    return (value - past.median) / max(past.deviation, LEAST / HARD)
