"""UN105: one worker's data stay different from those of the others."""

from __future__ import annotations

import math

from unisono.diagnose.rules.shared.batch_makeup import input_means, input_scales, tokens
from unisono.diagnose.rules.shared.known_batches import batches_known, new_batches
from unisono.diagnose.rules.shared.log_values import logs
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import Peers, median, median_of_others
from unisono.records import StepRecord

LARGE_LOSS = math.log(1.1)
"""From here on a worker's loss is a warning; below, a remark."""

THINGS = {
    "tokens": "number of tokens",
    "samples": "batch size",
    "input_scale": "scale of the inputs",
    "input_mean": "mean of the inputs",
    "loss": "loss",
}
"""What is nearest to the cause comes first."""

LARGE = {"tokens": math.log(1.25), "input_scale": math.log(1.25), "input_mean": 0.25}
"""From here on these are a warning, whatever the loss: every worker counts the same, whatever it was given."""

SHOWN = ("length", "padding", "samples")
EARLY, MATTERS = 16, 0.05
"""A gap is worth a warning from this share of the median of the first losses on."""

EVERY = 8
"""Steps from one look at an alarm to the next."""

LEAST = {"loss": 0.02, "samples": 0.05, "tokens": 0.05, "input_scale": 0.05, "input_mean": 0.05}
"""Smaller differences (of logarithms; of standard deviations for means) are not worth a word, however persistent."""


class UnevenShards(Statistical):
    """One worker's data differ from the others'"""

    code, slug, severity = "UN105", "uneven-shards", "warning"
    pattern = "Batch Uniformity; easy data on one node"
    source = "loss dispersion manual, sections 3.2 and 3.3"
    meaning = (
        "Shards of well-shuffled data are alike, so each worker has the highest or lowest loss as often as any other. "
        "The worker named has not: its loss (or its batch size, its number of tokens without padding, the mean or "
        "scale of its inputs) has stayed to one side of the others' for many steps. At every step bets are made that a "
        "worker stays apart; if workers were interchangeable, the chance that any of them ever wins enough for an "
        "alarm would be 1 in 100,000 for a whole run (docs/detection.md). Every worker counts the same in the average "
        "of the gradients, so unequal shards also shift what is learnt. A remark if the loss is off by less than 10 %, "
        "and tokens and inputs by less than a quarter, or if the workers' batches are unknown: somebody who repeats "
        "one batch on purpose differs from the others for ever."
    )
    needs = "two or more workers with positive losses, and 32 steps of new batches"
    causes = {
        "different-data": "the worker's shard holds other data: wrong labels, another source, easier or harder samples",
        "not-shuffled": "the data are split in their stored order, so each worker gets a part of its own kind",
        "unequal-batches": "the worker's batches are larger or smaller than the others'",
        "uneven-tokens": "the worker gets more or fewer tokens than the others: longer or shorter samples, or padding",
        "preprocessed-differently": "the worker's inputs are normalised, scaled or converted in another way",
    }
    remedies = {
        "different-data": ("look at a few batches of this worker beside another's: inputs, labels, preprocessing",),
        "not-shuffled": (
            "shuffle before sharding: DistributedSampler(shuffle=True) and set_epoch in each epoch; or shuffle files",
        ),
        "unequal-batches": ("give every worker the same batch_size and use drop_last=True",),
        "uneven-tokens": (
            "shuffle before sharding, or group by length across workers, not within one",
            "divide each worker's summed loss by the tokens of all workers, not by its own: all_reduce the count, and "
            "multiply by the number of workers, since DDP takes the mean",
        ),
        "preprocessed-differently": (
            "use the same transform on every rank: compare mean, standard deviation, dtype and range (0 to 1 or 0 to "
            "255) of batch.mean(), batch.std() on the rank named and on another one",
        ),
    }
    explains = ("UN104", "UN408", "UN409", "UN410", "UN411", "UN501", "UN601")
    forgets_at_jumps = False

    def forget(self) -> None:
        self._peers: dict[str, Peers] = {}
        self._early: list[float] = []
        self._steps = 0
        self._alarmed = False
        self._measured: StepRecord | None = None
        """The last step with a number of tokens."""

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if not new_batches(record):
            return
        # Unequal batches are a finding of their own; losses of unequal batches are not comparable.
        unequal = run_state.comparable.unequal
        self._hear("loss", None if unequal else run_state.comparable.log_loss_W, record.step)
        if len(self._early) < EARLY and record.loss_mean is not None:
            self._early.append(record.loss_mean)
        if unequal or "samples" in self._peers:
            self._hear("samples", logs(record.samples_W), record.step)
        if record.length_W or record.padding_W:
            self._hear("tokens", tokens(record), record.step)
            self._measured = record
        if record.input_scale_W:
            self._hear("input_scale", input_scales(record), record.step)
            self._hear("input_mean", input_means(record), record.step)
        self._steps += 1
        all_peers = self._peers.values()
        was_alarmed, self._alarmed = self._alarmed, True in [peers.alarmed for peers in all_peers]
        if self._alarmed and was_alarmed and self._steps % EVERY:
            return
        apart = [name for name in THINGS if name in self._peers and self._peers[name].apart()] if self._alarmed else []
        if apart:
            self._judge(record, run_state, apart[0])
        elif True in [peers.ready for peers in all_peers]:
            self.passed(record.step)

    def _hear(self, name: str, value_W: list[float] | None, step: int) -> None:
        if value_W is None:
            return
        peers = self._peers.get(name)
        if peers is None or peers.workers != len(value_W):
            peers = self._peers[name] = Peers(len(value_W), LEAST[name], sudden=False)
        peers.add(value_W, step)

    @property
    def suspicious(self) -> bool:
        return "loss" in self._peers and self._peers["loss"].suspicious

    def _judge(self, record: StepRecord, run_state: RunState, name: str) -> None:
        peers = self._peers[name]
        outliers = peers.outliers()
        if name == "loss" and set(outliers) & run_state.scaled.undecided:
            return
        if name == "loss" and outliers and set(outliers) <= set(run_state.scaled.found):
            self.excuse("the loss is that of the others times one factor, and so is the gradient: see UN501")
            return
        if outliers:
            self._accuse(record, run_state, name, outliers)
            return
        levels = {worker: peers.level(worker) for worker in peers.apart()}
        # Workers on the other side may only seem apart, because the worst one moves the median they are held against.
        worst = max(levels.values(), key=abs)
        group = [worker for worker, level in levels.items() if level * worst > 0]
        if len(group) > 1:
            self._remark(record, run_state, name, group, worst)

    def _accuse(self, record: StepRecord, run_state: RunState, name: str, workers: list[int]) -> None:
        peers = self._peers[name]
        level, pair = max((peers.level(worker) for worker in workers), key=abs), peers.workers == 2
        large = batches_known(record) and self._is_large(record, name, level)
        evidence = _evidence(name, level)
        beside = _beside(self._measured, workers[0]) if name == "tokens" and self._measured is not None else ""
        if pair:
            evidence["undecidable"] = f"between {spoken(run_state.ranks((0, 1)))}"
        self.report(
            record.step,
            run_state,
            why=_undecidable(run_state, name)
            if pair
            else f"{spoken(run_state.ranks(workers))}'s {_usually(name, level)}{beside}",
            causes=_causes(name, one=len(workers) == 1),
            workers=() if pair else workers,
            severity="warning" if large else "info",
            evidence=evidence,
            since=min(map(peers.since, workers)),
        )

    def _is_large(self, record: StepRecord, name: str, level: float) -> bool:
        """As it is, or by the loss of the same workers."""
        loss = self._peers.get("loss")
        if name != "loss" and loss is not None and loss.workers == self._peers[name].workers and loss.ready:
            level_of_loss = max((loss.level(worker) for worker in loss.apart()), key=abs, default=0.0)
        else:
            level_of_loss = level if name == "loss" else 0.0
        own = name in LARGE and abs(level) >= LARGE[name]
        return own or (abs(level_of_loss) >= LARGE_LOSS and self._matters(record, level_of_loss))

    def _matters(self, record: StepRecord, level: float) -> bool:
        """Where all losses are near zero their ratio means little: the gap is held against the first losses."""
        gap = abs(1 - math.exp(-abs(level))) * (record.loss_mean or 0.0)
        return bool(self._early) and gap >= MATTERS * median(self._early)

    def _remark(self, record: StepRecord, run_state: RunState, name: str, group: list[int], level: float) -> None:
        self.report(
            record.step,
            run_state,
            why=f"the {THINGS[name]} of {spoken(run_state.ranks(group))} stays apart from that of the others",
            causes=_causes(name, one=False),
            severity="info",
            evidence=_evidence(name, level),
        )


def _beside(record: StepRecord, worker: int) -> str:
    """The numbers behind a difference in tokens."""
    rows = {title: getattr(record, f"{title}_W") for title in SHOWN}
    told = [
        f"{title} {value_W[worker]:.3g} against {median_of_others(value_W, worker):.3g}"
        for title, value_W in rows.items()
        if len(value_W) > worker and None not in value_W and len(set(value_W)) > 1
    ]
    return f" ({', '.join(told)})" if told else ""


def _evidence(name: str, level: float) -> dict[str, float | int | str]:
    if name == "input_mean":
        return {"input_mean_minus_others": round(level, 4)}
    return {f"{name}_to_others": round(math.exp(level), 4)}


def _usually(name: str, level: float) -> str:
    if name == "input_mean":
        return f"inputs usually have a mean {level:+.2g} standard deviations from the others'"
    return f"{THINGS[name]} is usually {math.exp(level):.3g} times the median of the others"


def _undecidable(run_state: RunState, name: str) -> str:
    ranks = spoken(run_state.ranks((0, 1)))
    return (
        f"the {THINGS[name]} of {ranks} differs, always in the same sense; undecidable which one is wrong: exchange "
        "their shards, and see whether the difference moves"
    )


def _causes(name: str, one: bool) -> dict[str, float]:
    if name == "samples":
        return {"unequal-batches": 0.9}
    if name == "tokens":
        return {"uneven-tokens": 0.9}
    if name in ("input_scale", "input_mean"):
        return {"preprocessed-differently": 0.8, "different-data": 0.4}
    return {"different-data": 0.7, "not-shuffled": 0.4} if one else {"not-shuffled": 0.6, "different-data": 0.4}
