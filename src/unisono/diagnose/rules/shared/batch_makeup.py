"""What the workers' batches are made of: how many tokens, and how large their numbers are. W = workers."""

from __future__ import annotations

import math
from collections import deque

from unisono.diagnose.rules.shared.log_values import logs
from unisono.diagnose.statistics import gaps_to_others, median, scatter
from unisono.records import Floats, StepRecord

RECENT = 64
ENOUGH = 16
CLEAR = 4.0
"""A gap further off than this many standard errors is none of chance."""

LEAST_TOKENS, LEAST_INPUT = 0.1, 0.05
"""Smaller gaps (of logarithms, of means in standard deviations) explain nothing."""

STEEPEST = 1.5
"""So much larger than that of the tokens the difference of the norms may be: masks may not tell which tokens count."""

DEPTH = 8.0
"""How much larger than that of the inputs the difference of the gradients may be: each layer may add its own."""


def tokens(record: StepRecord) -> list[float] | None:
    """Logarithms of the tokens in each worker's batches, padding left out."""
    if not record.length_W and not record.padding_W:
        return None
    workers = len(record.length_W or record.padding_W)
    samples_W = record.samples_W if len(record.samples_W) == workers else (1,) * workers
    parts = zip(samples_W, record.length_W or (1.0,) * workers, _filled(record.padding_W, workers), strict=True)
    return logs([None if None in part else math.prod(part) for part in parts])  # type: ignore[arg-type]


def input_scales(record: StepRecord) -> list[float] | None:
    return logs(record.input_scale_W)


def input_means(record: StepRecord) -> list[float] | None:
    """In units of the usual standard deviation."""
    mean_W = [mean for mean in record.input_mean_W if mean is not None and math.isfinite(mean)]
    scales = [scale for scale in record.input_scale_W if scale]
    if len(mean_W) < max(2, len(record.input_mean_W)) or len(scales) < len(mean_W):
        return None
    return [mean / median(scales) for mean in mean_W]


class Makeup:
    """Whether a worker's batches differ enough to explain that its gradients do."""

    def __init__(self) -> None:
        self._gaps: dict[str, deque[list[float]]] = {}

    def hear(self, record: StepRecord) -> None:
        if record.length_W or record.padding_W:
            self._add("tokens", tokens(record))
        if record.input_scale_W:
            self._add("scale", input_scales(record))
            self._add("mean", input_means(record))

    def _add(self, name: str, value_W: list[float] | None) -> None:
        rows = self._gaps.setdefault(name, deque(maxlen=RECENT))
        if rows and value_W is not None and len(rows[-1]) != len(value_W):
            rows.clear()
        if value_W is not None:
            rows.append(gaps_to_others(value_W))

    def explains(self, worker: int, level: float) -> bool:
        """:param level: How far the logarithm of the worker's norm, or its cosine, is from the others'."""
        gaps = {name: self._gap(name, worker) for name in self._gaps}
        fewer = abs(gaps.get("tokens", 0.0))
        other = max(abs(gaps.get("scale", 0.0)), abs(gaps.get("mean", 0.0)))
        by_tokens = fewer >= LEAST_TOKENS and abs(level) <= STEEPEST * fewer + LEAST_TOKENS
        return by_tokens or (other >= LEAST_INPUT and abs(level) <= DEPTH * other)

    def _gap(self, name: str, worker: int) -> float:
        """The usual one, where it is none of chance."""
        gaps = [gap_W[worker] for gap_W in self._gaps[name]]
        if len(gaps) < ENOUGH:
            return 0.0
        usual = median(gaps)
        return usual if abs(usual) > CLEAR * scatter(gaps) / math.sqrt(len(gaps)) else 0.0


def _filled(padding_W: Floats, workers: int) -> list[float | None]:
    if len(padding_W) != workers:
        return [1.0] * workers
    return [None if padding is None else 1 - padding for padding in padding_W]
