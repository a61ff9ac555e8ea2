"""UN501: one worker's gradients stay apart from those of the others, although its loss does not."""

from __future__ import annotations

import math
from collections import deque

from unisono.history import LEARNT, Peers, gaps_to_others, median, scatter
from unisono.records import StepRecord
from unisono.rules._scene import Scene, spoken
from unisono.rules._statistical import Statistical, batches_known, logs, new_batches

LEAST_NORM = 0.05
LEAST_COSINE = 0.02
LEAST_LOSS = 0.02
"""Smaller differences (of logarithms, of cosines) are not worth a word, however persistent."""

LOSSES = 64
LOSS_CLEAR = 3.0
"""A loss further off than this many standard errors is off as well."""

LARGE_NORM = math.log(1.5)
LARGE_COSINE = 0.2
TINY = 1e-30
"""Stands for the norm of a gradient that is zero."""


class OutlierWorker(Statistical):
    """One worker's gradients differ from the others'"""

    code, slug, severity = "UN501", "outlier-worker", "critical"
    pattern = "Hardware Fault Detection"
    source = "direction consistency manual, section 4; global gradient norm manual, section 3"
    meaning = (
        "Workers that draw their data alike are interchangeable: each of them has the largest or smallest gradient as "
        "often as any other. The worker named has not been: its gradient norm, or the agreement of its direction with "
        "the others', has stayed to one side, while its loss is like theirs. So it is probably not the data that "
        "differ but what is computed from them. At every reading each worker is scored against the median of the "
        "others, in units of what such differences usually are in this run; the scores, capped at 4, add up, and an "
        "alarm needs a sum of 60, or three scores above 10 in a row. With two workers nobody can say which is wrong."
    )
    correction = (
        "The manual asks for low similarity with all other nodes. Low similarity is normal for small batches; what "
        "counts is that one worker is persistently lower than the others. A throttled GPU computes the same numbers "
        "later: that is UN503."
    )
    needs = "two or more workers with equal batch sizes, and 16 readings of new batches"
    causes = {
        "different-computation": "this worker computes something else: loss scale, accumulation, dropout, precision",
        "faulty-device": "the device computes wrong numbers without an error (silent data corruption)",
        "data-of-another-kind": "the worker's data are of another kind",
    }
    remedies = {
        "faulty-device": (
            "run the same batch on this device and on another one and compare the gradients; test or drain the host",
        ),
        "different-computation": (
            "look for conditions on the rank, and for a loss that is divided or scaled differently there",
        ),
        "data-of-another-kind": ("look at a few batches of this worker beside those of another one",),
    }
    explains = ("UN401", "UN406", "UN407", "UN411")
    forgets_at_jumps = False

    def forget(self) -> None:
        self._norms: Peers | None = None
        self._cosines: Peers | None = None
        self._loss_TW: deque[list[float]] = deque(maxlen=LOSSES)

    def hear(self, record: StepRecord, scene: Scene) -> None:
        if len(set(record.samples_W)) > 1 or not new_batches(record):
            return
        loss_W = logs(record.loss_W)
        if loss_W is not None:
            self._loss_TW.append(loss_W)
        norm_W = logs(record.norm_W, TINY) if any(record.norm_W) else None
        if norm_W is None:
            return
        self._norms = _heard(self._norms, norm_W, LEAST_NORM)
        cosines = [cosine for cosine in record.cos_W if cosine is not None]
        if len(cosines) == len(norm_W):
            self._cosines = _heard(self._cosines, cosines, LEAST_COSINE, sudden=False)
        if self._norms is not None and self._norms.ready:
            self._judge(record, scene, self._norms)

    def _judge(self, record: StepRecord, scene: Scene, norms: Peers) -> None:
        worker = norms.outlier()
        by_cosine = worker is None
        if worker is None:
            worker = self._lowest_cosine()
        if worker is None:
            if not norms.alarmed:
                self.passed(record.step)
        elif not self._loss_is_off(worker):
            self._accuse(record, scene, worker, norms, by_cosine)

    def _lowest_cosine(self) -> int | None:
        """A higher one is no fault: a long gradient of one worker lowers the cosines of the others."""
        worker = None if self._cosines is None else self._cosines.outlier()
        if worker is None or self._cosines is None:
            return None
        return worker if self._cosines.level(worker) < 0 else None

    def _loss_is_off(self, worker: int) -> bool:
        """Then its data differ, and UN105 says so."""
        if not self._losses_known:
            return False
        gaps = [gaps_to_others(loss_W)[worker] for loss_W in self._loss_TW]
        error = 1.25 * scatter(gaps) / math.sqrt(len(gaps))
        return abs(median(gaps)) > max(LEAST_LOSS, LOSS_CLEAR * error)

    @property
    def _losses_known(self) -> bool:
        return len(self._loss_TW) >= LEARNT

    def _accuse(self, record: StepRecord, scene: Scene, worker: int, norms: Peers, by_cosine: bool) -> None:
        pair = norms.workers == 2
        certain = self._losses_known and batches_known(record) and not pair
        evidence: dict[str, float | int | str] = {"norm_to_others": round(math.exp(norms.level(worker)), 4)}
        if self._cosines is not None:
            evidence["cos_minus_others"] = round(self._cosines.level(worker), 4)
        if pair:
            evidence["undecidable"] = f"between {spoken(scene.ranks((0, 1)))}"
        self.report(
            record.step,
            scene,
            why=self._why(scene, worker, norms, by_cosine),
            causes=_causes(self._losses_known),
            workers=() if pair else (worker,),
            severity="critical" if certain and self._is_large(worker, norms) else "warning",
            evidence=evidence,
        )

    def _is_large(self, worker: int, norms: Peers) -> bool:
        lower = 0.0 if self._cosines is None else -self._cosines.level(worker)
        return abs(norms.level(worker)) > LARGE_NORM or lower > LARGE_COSINE

    def _why(self, scene: Scene, worker: int, norms: Peers, by_cosine: bool) -> str:
        loss = ", while its loss is like theirs" if self._losses_known else ""
        ratio = math.exp(norms.level(worker))
        if norms.workers == 2:
            ranks = spoken(scene.ranks((0, 1)))
            return (
                f"one gradient norm is usually {ratio:.3g} times the other; undecidable between {ranks} which is wrong"
            )
        rank = spoken(scene.ranks((worker,)))
        if by_cosine and self._cosines is not None:
            lower = self._cosines.level(worker)
            return f"{rank}'s direction agrees less with the others' (cosine {lower:+.2f}){loss}"
        return f"{rank}'s gradient norm is usually {ratio:.3g} times that of the others{loss}"


def _heard(peers: Peers | None, value_W: list[float] | None, least: float, sudden: bool = True) -> Peers | None:
    if value_W is None:
        return peers
    if peers is None or peers.workers != len(value_W):
        peers = Peers(len(value_W), least, sudden)
    peers.add(value_W)
    return peers


def _causes(losses_known: bool) -> dict[str, float]:
    if losses_known:
        return {"faulty-device": 0.6, "different-computation": 0.5}
    return {"data-of-another-kind": 0.4, "different-computation": 0.4, "faulty-device": 0.3}
