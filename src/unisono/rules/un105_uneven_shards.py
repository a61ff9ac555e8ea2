"""UN105: one worker's data stay different from those of the others."""

from __future__ import annotations

import math

from unisono.history import Peers
from unisono.records import StepRecord
from unisono.rules._scene import Scene, spoken
from unisono.rules._statistical import Statistical, logs, new_batches

LARGE_LOSS = math.log(1.1)
"""From here on a worker's loss is a warning; below, a remark."""

LEAST = {"loss": 0.02, "samples": 0.05, "length": 0.05, "padding": 0.02}
"""Smaller differences (of logarithms; of shares for padding) are not worth a word, however persistent."""


class UnevenShards(Statistical):
    """One worker's data differ from the others'"""

    code, slug, severity = "UN105", "uneven-shards", "warning"
    pattern = "Batch Uniformity; easy data on one node"
    source = "loss dispersion manual, sections 3.2 and 3.3"
    meaning = (
        "Shards of well-shuffled data are alike, so each worker has the highest or lowest loss as often as any other. "
        "The worker named has not: its loss (or its batch size, sample length or share of padding) has stayed to one "
        "side of the others' for many steps. At every step each worker is scored against the median of the others, in "
        "units of what such differences usually are in this run; the scores, capped at 4, add up, and an alarm needs a "
        "sum of 60. Every worker counts the same in the average of the gradients, so unequal shards also shift what is "
        "learnt."
    )
    needs = "two or more workers with positive losses, and 16 steps of new batches"
    causes = {
        "different-data": "the worker's shard holds other data: wrong labels, another source, easier or harder samples",
        "not-shuffled": "the data are split in their stored order, so each worker gets a part of its own kind",
        "unequal-batches": "the worker's batches are larger or smaller than the others'",
        "unequal-lengths": "the worker gets longer or shorter samples, or more padding, than the others",
    }
    remedies = {
        "different-data": ("look at a few batches of this worker beside another's: inputs, labels, preprocessing",),
        "not-shuffled": (
            "shuffle before sharding: DistributedSampler(shuffle=True) and set_epoch at each epoch, or shuffle the files",
        ),
        "unequal-batches": ("give every worker the same batch_size and use drop_last=True",),
        "unequal-lengths": ("shuffle before sharding, or group by length across workers, not within one",),
    }
    explains = ("UN104", "UN408", "UN409", "UN410", "UN411", "UN501")
    forgets_at_jumps = False

    def forget(self) -> None:
        self._peers: dict[str, Peers] = {}

    def hear(self, record: StepRecord, scene: Scene) -> None:
        if not new_batches(record):
            return
        # Unequal batches are a finding of their own; losses of unequal batches are not comparable.
        values: dict[str, list[float] | None] = {"loss": None} if len(set(record.samples_W)) > 1 else {}
        values = {"loss": logs(record.loss_W)} | values
        values |= {
            "samples": logs(record.samples_W),
            "length": logs(record.length_W),
            "padding": _all(record.padding_W),
        }
        for name, value_W in values.items():
            self._hear(name, value_W)
        ready = [name for name, peers in self._peers.items() if peers.ready]
        found = next((name for name in ready if self._peers[name].apart()), None)
        if found:
            self._accuse(record, scene, found)
        elif ready:
            self.passed(record.step)

    def _hear(self, name: str, value_W: list[float] | None) -> None:
        if value_W is None:
            return
        peers = self._peers.get(name)
        if peers is None or len(peers.gap_W) != len(value_W):
            peers = self._peers[name] = Peers(len(value_W), LEAST[name])
        peers.add(value_W)

    def _accuse(self, record: StepRecord, scene: Scene, name: str) -> None:
        peers = self._peers[name]
        outlier = peers.outlier()
        pair = len(peers.gap_W) == 2
        workers = peers.apart() if outlier is None else [outlier]
        worst = max(workers, key=lambda worker: abs(peers.level(worker)))
        large = name == "loss" and outlier is not None and abs(peers.level(worst)) >= LARGE_LOSS
        evidence: dict[str, float | int | str] = {f"{name}_{_unit(name)}": _size(name, peers.level(worst))}
        if pair:
            evidence["undecidable"] = f"between {spoken(scene.ranks((0, 1)))}"
        self.report(
            record.step,
            scene,
            why=_why(scene, name, peers, workers),
            causes=_causes(name, outlier is not None),
            workers=() if pair else workers,
            severity="warning" if large else "info",
            evidence=evidence,
        )


def _all(value_W: tuple[float | None, ...]) -> list[float] | None:
    known = [value for value in value_W if value is not None]
    return known if len(known) == len(value_W) > 1 else None


def _unit(name: str) -> str:
    return "minus_others" if name == "padding" else "to_others"


def _size(name: str, level: float) -> float:
    return round(level if name == "padding" else math.exp(level), 4)


def _why(scene: Scene, name: str, peers: Peers, workers: list[int]) -> str:
    thing = {"samples": "batch size", "length": "sample length", "padding": "share of padding"}.get(name, name)
    ranks = spoken(scene.ranks((0, 1) if len(peers.gap_W) == 2 else workers))
    if len(peers.gap_W) == 2:
        return f"the {thing} differs in the same sense for long; undecidable between {ranks} whose data are wrong"
    if len(workers) > 1:
        return f"{ranks}: the {thing} stays apart from the others'"
    by = (
        f"{peers.level(workers[0]):+.2f} against"
        if name == "padding"
        else f"{_size(name, peers.level(workers[0])):.3g} times"
    )
    return f"{ranks}'s {thing} is usually {by} the median of the others"


def _causes(name: str, one: bool) -> dict[str, float]:
    if name == "samples":
        return {"unequal-batches": 0.9}
    if name in ("length", "padding"):
        return {"unequal-lengths": 0.8}
    return {"different-data": 0.7, "not-shuffled": 0.4} if one else {"not-shuffled": 0.6, "different-data": 0.4}
