"""From what all workers said to one record of numbers: dispersion, consistency, noise.

W = workers, G = layer groups, K = sketch length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from unisono.common.limits import MATRIX_IN_BURSTS_UP_TO, MATRIX_UP_TO
from unisono.listen.messages import AllRanksStep, RankStep
from unisono.measure.agreement import DirectionWindow, by_group, consistency, or_none
from unisono.measure.compare_evidence import compare
from unisono.records import StepRecord
from unisono.sketch import gram

MATRICES_FIRST, MATRICES_EVERY = 500, 4
"""Outside bursts they are kept at all of the first readings and at every fourth later one: they are most of a file."""

AVERAGED = 50
"""Readings over which the noise scale is averaged: plainly up to here, exponentially after that."""

Number = TypeVar("Number", float, int, bool)


@dataclass(slots=True)
class Memory:
    """What measuring remembers from step to step: the smoothed noise scale and the window's summed directions."""

    common: float = 0.0
    """Share of the squared norm that is signal, averaged over the last readings."""

    readings: int = 0
    heard: int = 0
    window: DirectionWindow = field(default_factory=DirectionWindow)
    skipped_steps: int = 0
    spent: dict[int, float] = field(default_factory=dict)
    trained: dict[int, float] = field(default_factory=dict)


def measure(all_ranks: AllRanksStep, memory: Memory, attempt: int, burst: bool = False) -> StepRecord:
    present = [signal for signal in all_ranks.signal_W if signal is not None]
    cheap = _losses(all_ranks) | _timing(all_ranks, memory)
    heard = (
        _heard(all_ranks, memory, _keeps_matrices(all_ranks, memory, burst))
        if any(one.heard for one in present)
        else {}
    )
    memory.heard += bool(heard)
    skipped = any(signal.skipped for signal in present)
    memory.skipped_steps += skipped
    return StepRecord(
        attempt=attempt,
        step=all_ranks.step,
        time=max(signal.time for signal in present) if present else 0.0,
        heard=bool(heard),
        skipped=skipped,
        skipped_steps=memory.skipped_steps,
        missed=not heard and any(signal.due and signal.syncs for signal in present),
        **cheap,
        **heard,
        **compare(all_ranks),
        **decided(all_ranks, bool(heard)),
    )


def _keeps_matrices(all_ranks: AllRanksStep, memory: Memory, burst: bool) -> bool:
    often = memory.heard < MATRICES_FIRST or memory.heard % MATRICES_EVERY == 0
    return len(all_ranks.signal_W) <= (MATRIX_IN_BURSTS_UP_TO if burst else MATRIX_UP_TO * often)


def _losses(all_ranks: AllRanksStep) -> dict[str, Any]:
    loss_W = _each(all_ranks, lambda signal: signal.loss)
    known = [loss for loss in loss_W if loss is not None]
    clip_norms = [
        signal.clip_norm for signal in all_ranks.signal_W if signal is not None and signal.clip_norm is not None
    ]
    values = {
        "finite_W": _each(all_ranks, lambda signal: signal.finite),
        "clip_norm": clip_norms[0] if clip_norms else None,
    }
    if not known:
        return values
    spread = max(known) - min(known) if all(map(math.isfinite, known)) else math.nan
    return values | {
        "loss_W": loss_W,
        "loss_mean": _mean(known),
        "loss_std": _deviation(known),
        "loss_range": spread,
    }


def _timing(all_ranks: AllRanksStep, memory: Memory) -> dict[str, Any]:
    for rank, signal in enumerate(all_ranks.signal_W):
        if signal is not None:
            memory.spent[rank] = memory.spent.get(rank, 0.0) + signal.cost
            memory.trained[rank] = memory.trained.get(rank, 0.0) + signal.seconds
    shares = [memory.spent[rank] / memory.trained[rank] for rank in memory.spent if memory.trained[rank] > 0]
    return {
        "compute_W": _each(all_ranks, lambda signal: signal.compute),
        "step_W": _each(all_ranks, lambda signal: signal.seconds),
        "listening_cost": max(shares, default=None),
    }


def _heard(all_ranks: AllRanksStep, memory: Memory, matrices: bool) -> dict[str, Any]:
    squares = [_square(signal) for signal in all_ranks.signal_W]
    square_W = torch.tensor(squares, dtype=torch.float64)
    norm_W = [math.sqrt(square) for square in squares]
    known = [norm for norm in norm_W if not math.isnan(norm)]
    deviation, mean = _deviation(known), _mean(known)
    mean_square = _squared_norm_of_mean(all_ranks, square_W)
    values: dict[str, Any] = {
        "norm_W": tuple(
            norm if signal is not None and signal.heard else None
            for signal, norm in zip(all_ranks.signal_W, norm_W, strict=True)
        ),
        "grad_norm": None if mean_square is None else math.sqrt(mean_square),
        "grad_norm_std": deviation,
        "grad_norm_cv": deviation / mean if mean > 0 else None,
        "nonfinite_W": _each(all_ranks, lambda signal: signal.nonfinite if signal.heard else None),
    }
    values |= _groups(all_ranks, matrices)
    if len(norm_W) > 1:
        values |= _agreement(all_ranks, square_W, mean_square, memory, matrices)
    return values


def _squared_norm_of_mean(all_ranks: AllRanksStep, square_W: Tensor) -> float | None:
    """Exact, from the ranks' shares of the reduced gradient; None unless that was a plain mean of all."""
    if len(square_W) == 1:
        return None if square_W.isnan() else float(square_W)
    shares = [signal.reduced_share for signal in all_ranks.signal_W if signal is not None]
    known = [share for share in shares if share is not None]
    steered = any(signal is not None and signal.weight_W for signal in all_ranks.signal_W)
    if steered or not all_ranks.plain_mean or len(known) < len(all_ranks.signal_W):
        return None
    mean_square = sum(known)
    # A mean is never longer than the mean of the lengths: if it is, the reduction was something else.
    longest = float(square_W.sqrt().mean()) ** 2
    return mean_square if mean_square <= longest * (1 + 1e-3) else None


def _agreement(
    all_ranks: AllRanksStep, square_W: Tensor, mean_square: float | None, memory: Memory, matrices: bool
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if mean_square is not None:
        values["cos_weighted"] = or_none(gram.weighted_mean_cosine(square_W, mean_square))
    directions, estimate = consistency(all_ranks, square_W, mean_square, memory.window, matrices)
    values |= directions
    if mean_square is None and all_ranks.sketch_WK is not None:
        mean_square = estimate
        values["grad_norm"] = None if mean_square is None else math.sqrt(mean_square)
    if mean_square is not None:
        values |= _noise(square_W, mean_square, memory)
    return values


def _noise(square_W: Tensor, mean_square: float, memory: Memory) -> dict[str, Any]:
    """From the share of the workers' mean squared norm that is common to all of them, averaged over readings.

    Shares are averaged, not squared norms: those fall by orders of magnitude, and the oldest would outweigh the rest.
    """
    signal, noise = (float(number) for number in gram.noise(square_W, mean_square))
    if not math.isfinite(signal + noise) or signal + noise <= 0:
        return {}
    memory.readings = min(AVERAGED, memory.readings + 1)
    memory.common += (signal / (signal + noise) - memory.common) / memory.readings
    common = min(1.0, max(0.0, memory.common))
    return {
        "noise_scale": (1 - common) / common if common else math.inf,
        "cos_expected": common,
        "effective_workers": 1 / (common + (1 - common) / len(square_W)),
    }


def _groups(all_ranks: AllRanksStep, matrices: bool) -> dict[str, Any]:
    square_WG = [
        signal.squared_norm_G if signal is not None and signal.heard else None for signal in all_ranks.signal_W
    ]
    known = [square_G for square_G in square_WG if square_G is not None]
    values: dict[str, Any] = {"norm_G": tuple(math.sqrt(_mean(squares)) for squares in zip(*known, strict=True))}
    if not matrices:
        return values
    values["norm_GW"] = tuple(
        tuple(None if square_G is None else math.sqrt(square_G[group]) for square_G in square_WG)
        for group in range(len(known[0]))
    )
    return values | by_group(all_ranks)


def _square(signal: RankStep | None) -> float:
    return math.nan if signal is None or signal.squared_norm is None else signal.squared_norm


def _each(all_ranks: AllRanksStep, value: Callable[[RankStep], Number | None]) -> tuple[Number | None, ...]:
    return tuple(None if signal is None else value(signal) for signal in all_ranks.signal_W)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def _deviation(numbers: Sequence[float]) -> float:
    """Population standard deviation; nan if any number is not finite."""
    mean = _mean(numbers)
    return math.sqrt(_mean([(number - mean) ** 2 for number in numbers])) if math.isfinite(mean) else math.nan


MOST_WORKERS = 64
"""Above so many, who was left out is kept only at heard steps: it would be most of a file."""


def decided(all_ranks: AllRanksStep, heard: bool) -> dict[str, Any]:
    """The fields of the step's record; none without steering, or where the worker that tells of it was silent."""
    signal = next((signal for signal in all_ranks.signal_W if signal is not None and signal.weight_W), None)
    if signal is None:
        return {}
    weight_W, workers = signal.weight_W, len(signal.weight_W)
    kept = sum(weight != 0 for weight in weight_W)
    values: dict[str, Any] = {"kept_workers": kept}
    if workers > MOST_WORKERS and not (heard and kept < workers):
        return values
    if kept and not all(math.isclose(weight, 1 / workers, rel_tol=1e-6) for weight in weight_W):
        values["weight_W"] = weight_W
    if heard or kept < workers:
        values["distance_W"] = tuple(None if math.isnan(distance) else distance for distance in signal.distance_W)
    return values
