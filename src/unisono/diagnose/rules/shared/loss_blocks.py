"""The mean loss over blocks of steps: how high, how wild, and whether the workers' batches explain it. W = workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from unisono.records import StepRecord

BLOCK = 100
"""Steps."""

LONG = 3
"""Blocks whose mean says where the loss is, however noisy it is from step to step."""


@dataclass(frozen=True, slots=True)
class Block:
    step: int
    """The last one."""

    mean: float
    low: float
    high: float
    """Between these two lie eight of ten losses."""

    shared: float
    """Variance of the mean loss around its trend, over what independent batches of the workers would give: about 1 in
    calm training."""

    rate: float | None


class LossBlocks:
    """The newest blocks, the lowest of all, and the lowest mean of `LONG` blocks before the newest ones."""

    def __init__(self) -> None:
        self.newest: deque[Block] = deque(maxlen=2 * LONG)
        self.lowest: Block | None = None
        self.lowest_long: float | None = None
        self._losses: list[float] = []
        self._noise: list[float] = []

    def add(self, record: StepRecord, loss: float) -> bool:
        """Whether a block has just ended."""
        self._losses.append(loss)
        if record.loss_std is not None and len(record.loss_W) > 1:
            self._noise.append(record.loss_std**2 / (len(record.loss_W) - 1))
        if len(self._losses) < BLOCK:
            return False
        self._end(record)
        return True

    def _end(self, record: StepRecord) -> None:
        losses, noise = self._losses, self._noise
        mean = sum(losses) / BLOCK
        explained = sum(noise) / len(noise) if noise else 0.0
        low, high = spread(losses)
        block = Block(record.step, mean, low, high, _swing(losses) / explained if explained else 1.0, record.lr)
        self._losses, self._noise = [], []
        if len(self.newest) == 2 * LONG:
            before = mean_of(list(self.newest)[:LONG])
            self.lowest_long = before if self.lowest_long is None else min(before, self.lowest_long)
        if self.lowest is None or block.mean < self.lowest.mean:
            self.lowest = block
        self.newest.append(block)

    def last(self, count: int) -> list[Block]:
        return list(self.newest)[-count:]


def _swing(losses: Sequence[float]) -> float:
    """Variance around a straight line: a loss that rises or falls all the time does not swing."""
    count, mean = len(losses), sum(losses) / len(losses)
    places = [place - (count - 1) / 2 for place in range(count)]
    slope = sum(map(mul, places, losses)) / sum(map(mul, places, places))
    rests = [loss - mean - slope * place for place, loss in zip(places, losses, strict=True)]
    return float(sum(map(mul, rests, rests))) / count


def mean_of(blocks: Sequence[Block]) -> float:
    return sum(block.mean for block in blocks) / len(blocks)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Between the two lie eight of ten values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 10], ordered[(9 * len(ordered)) // 10]
