"""Batches that stood out: against the other workers' of the same step, and against the worker's own last steps."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from unisono.records import AttemptRecord, BatchRecord, Ints, Record, StepRecord

WINDOW = 50
ENOUGH = 20
REFRESH = 8
"""A centre and a spread serve this many steps: sorting at every step would take most of the time."""

FAR_OFF = 6.0
MAD_TO_SD = 1.4826

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnusualBatch:
    attempt: int
    step: int
    rank: int
    what: str
    """`non-finite`, `loss`, `norm`, or `kept`: noted while training, for a reason that is not in the step's record."""

    off: float
    """Standard deviations (robust) from the peers and from the own past, the smaller of the two, with its sign."""

    loss: float | None = None
    peers: float | None = None
    """Median of the other workers' losses."""

    samples: int | None = None
    indices: Ints = ()


def unusual_batches(records: Iterable[Record], top: int) -> list[UnusualBatch]:
    """The `top` most conspicuous batches, the furthest off first."""
    observer = Observer()
    kept: dict[tuple[int, int, int], BatchRecord] = {}
    best: list[tuple[float, int, int, UnusualBatch]] = []
    for number, record in enumerate(records):
        if isinstance(record, BatchRecord):
            kept[record.attempt, record.step, record.rank] = record
        for nth, found in enumerate(observer.see(record)):
            heapq.heappush(best, (abs(found.off), -number, -nth, found))
            if len(best) > top:
                heapq.heappop(best)
    conspicuous = [_with_indices(entry[-1], kept) for entry in sorted(best, reverse=True)]
    return (conspicuous + [_from_record(record) for record in kept.values()])[:top]


class Observer:
    """Looks at steps in order, in bounded memory."""

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] = ()
        self._attempt = -1
        self._forget(-1)

    def see(self, record: Record) -> Iterator[UnusualBatch]:
        if isinstance(record, AttemptRecord):
            self._ranks = tuple(worker.rank for worker in record.workers)
        elif isinstance(record, StepRecord):
            if record.attempt != self._attempt:
                self._forget(record.attempt)
            yield from self._look(record)

    def _forget(self, attempt: int) -> None:
        self._attempt = attempt
        self._loss, self._norm = Measure(), Measure()
        self._broken = False

    def _look(self, record: StepRecord) -> Iterator[UnusualBatch]:
        broken_W = _broken(record)
        losses_W = [None if value is None or not math.isfinite(value) else value for value in record.loss_W]
        off_loss_W, off_norm_W = self._loss.see(losses_W), self._norm.see(_logs(record.norm_W))
        all_broken = all(broken_W) and (len(broken_W) > 1 or self._broken)
        self._broken = any(broken_W)
        for worker in range(max(len(broken_W), len(off_loss_W), len(off_norm_W))):
            what, off = "loss", _at(off_loss_W, worker) or 0.0
            norm_off = _at(off_norm_W, worker) or 0.0
            if norm_off > abs(off):
                what, off = "norm", norm_off
            if _at(broken_W, worker):
                what, off = "non-finite", 0.0 if all_broken else math.inf
            if abs(off) >= FAR_OFF:
                yield self._standout(record, worker, what, off, losses_W)

    def _standout(
        self, record: StepRecord, worker: int, what: str, off: float, losses_W: Sequence[float | None]
    ) -> UnusualBatch:
        others = [loss for nth, loss in enumerate(losses_W) if nth != worker and loss is not None]
        return UnusualBatch(
            attempt=record.attempt,
            step=record.step,
            rank=self._ranks[worker] if worker < len(self._ranks) else worker,
            what=what,
            off=off,
            loss=_at(record.loss_W, worker),
            peers=median(others) if others else None,
            samples=_at(record.samples_W, worker),
        )


class Measure:
    """One number per worker and step; how far each is off, robustly."""

    def __init__(self) -> None:
        self._own: list[RecentWindow] = []
        self._from_peers = RecentWindow(WINDOW * 2)

    def see(self, values_W: Sequence[float | None]) -> list[float]:
        if values_W and len(values_W) != len(self._own):
            self._own, self._from_peers = [RecentWindow() for _ in values_W], RecentWindow(WINDOW * 2)
        known = sorted(value for value in values_W if value is not None)
        return [self._off(worker, value, known) for worker, value in enumerate(values_W)]

    def _off(self, worker: int, value: float | None, known: list[float]) -> float:
        if value is None:
            return 0.0
        own = self._own[worker].off(value)
        if len(known) < 2:
            return own
        gap = value - _median_without(known, value)
        from_peers = self._from_peers.off(gap)
        return min(own, from_peers, key=abs) if own * from_peers > 0 else 0.0


class RecentWindow:
    """The last values: says how far a new one is off, and takes it in."""

    def __init__(self, size: int = WINDOW) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._age = 0
        self._centre = self._spread = 0.0

    def off(self, value: float) -> float:
        enough = len(self._values) >= ENOUGH
        if enough and self._age <= 0:
            self._refresh()
        self._values.append(value)
        self._age -= 1
        return (value - self._centre) / self._spread if enough and self._spread else 0.0

    def _refresh(self) -> None:
        self._age = REFRESH
        self._centre = median(self._values)
        self._spread = MAD_TO_SD * median(abs(value - self._centre) for value in self._values)


def _broken(record: StepRecord) -> list[bool]:
    """Workers with a loss or gradient that is not finite. A scaled loss that overflows is no batch's fault."""
    losses = [loss is not None and not math.isfinite(loss) for loss in record.loss_W]
    if record.skipped:
        return losses
    size = max(len(losses), len(record.finite_W), len(record.nonfinite_W))
    return [
        bool(_at(losses, worker) or _at(record.finite_W, worker) is False or _at(record.nonfinite_W, worker))
        for worker in range(size)
    ]


def _logs(values_W: Sequence[float | None]) -> list[float | None]:
    return [math.log(value) if value is not None and 0 < value < math.inf else None for value in values_W]


def _median_without(ordered: list[float], value: float) -> float:
    """The median of sorted values without one of them."""
    left = list(ordered)
    left.remove(value)
    return left[len(left) // 2] if len(left) % 2 else (left[len(left) // 2 - 1] + left[len(left) // 2]) / 2


def _at(values: Sequence[T], worker: int) -> T | None:
    return values[worker] if worker < len(values) else None


def _with_indices(found: UnusualBatch, kept: dict[tuple[int, int, int], BatchRecord]) -> UnusualBatch:
    record = kept.pop((found.attempt, found.step, found.rank), None)
    return found if record is None else replace(found, indices=record.indices)


def _from_record(record: BatchRecord) -> UnusualBatch:
    samples = len(record.indices) or None
    return UnusualBatch(
        record.attempt, record.step, record.rank, "kept", 0.0, record.loss, samples=samples, indices=record.indices
    )
