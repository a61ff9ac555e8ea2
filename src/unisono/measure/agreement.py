"""How far the workers' directions agree, as fields of a record: from all pairs of few workers, from sums of many.

W = workers, G = layer groups, K = sketch length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unisono.common.limits import ALL_PAIRS_UP_TO
from unisono.listen.messages import AllRanksStep
from unisono.records import Floats
from unisono.sketch import dequantise, gram, many_workers


@dataclass(slots=True)
class DirectionWindow:
    """The directions that add up in a window of heard steps."""

    start: int | None = None
    steps: int = 0
    direction_WK: Tensor | None = None
    of_many: many_workers.SummedDirections | None = None

    def begin(self, start: int) -> None:
        self.start, self.steps, self.direction_WK, self.of_many = start, 0, None, None


def consistency(
    all_ranks: AllRanksStep, square_W: Tensor, mean_square: float | None, window: DirectionWindow, matrices: bool
) -> tuple[dict[str, Any], float | None]:
    """The fields, and the squared norm of the mean gradient: exact where it was given, else from the sketches.

    :param square_W: Exact squared norms of the gradients; NaN where they are not known.
    """
    if all_ranks.sketch_WK is None:
        return {}, mean_square
    here = next(signal.window for signal in all_ranks.signal_W if signal is not None and signal.heard)
    if here != window.start:
        window.begin(here)
    sketch_WK, scale_W = all_ranks.sketch_WK, all_ranks.scale_W
    sent_W = sketch_WK.isfinite().all(1) if scale_W is None else scale_W.isfinite()
    if len(square_W) > ALL_PAIRS_UP_TO:
        return _by_sums(sketch_WK, sent_W, square_W, mean_square, window)
    wide_WK = widened(sketch_WK, scale_W)
    gram_WW, mean_square = _likeliest(wide_WK, square_W, mean_square)
    summed = _in_window(wide_WK, window) if bool(sent_W.all()) else {}
    return _pairs(gram_WW, matrices) | summed, mean_square


def by_group(all_ranks: AllRanksStep) -> dict[str, Any]:
    """Leave-one-out cosines of each layer group, from its own sketches."""
    if all_ranks.sketch_GWK is None:
        return {}
    sketch_GWK = widened(all_ranks.sketch_GWK, all_ranks.scale_GW)
    if len(all_ranks.signal_W) > ALL_PAIRS_UP_TO:
        cos_GW = [many_workers.leave_one_out_of(sketch_WK) for sketch_WK in sketch_GWK]
    else:
        cos_GW = [gram.leave_one_out(gram.gram(sketch_WK)) for sketch_WK in sketch_GWK]
    return {"cos_GW": tuple(floats(cos_W.tolist()) for cos_W in cos_GW)}


def widened(sketch: Tensor, scale: Tensor | None) -> Tensor:
    return sketch if scale is None else dequantise(sketch, scale)


def floats(numbers: Sequence[float]) -> Floats:
    return tuple(None if math.isnan(number) else number for number in numbers)


def or_none(number: Tensor) -> float | None:
    value = float(number)
    return None if math.isnan(value) else value


def _likeliest(sketch_WK: Tensor, square_W: Tensor, mean_square: float | None) -> tuple[Tensor, float | None]:
    gram_WW = gram.likeliest(gram.gram(sketch_WK), square_W)
    if mean_square is not None:
        return gram.shift_to_mean(gram_WW, mean_square), mean_square
    return gram_WW, _square(float(gram_WW.sum()) / len(square_W) ** 2)


def _pairs(gram_WW: Tensor, matrices: bool) -> dict[str, Any]:
    cos_WW = gram.cosines(gram_WW)
    apart = cos_WW[~torch.eye(len(cos_WW), dtype=torch.bool)]
    apart = apart[apart.isfinite()]
    values: dict[str, Any] = {
        "cos_W": floats(gram.leave_one_out(gram_WW).tolist()),
        "cos_mean": or_none(gram.mean_pairwise(gram_WW)),
        "cos_min": float(apart.min()) if len(apart) else None,
    }
    if matrices:
        values["cos_WW"] = tuple(floats(row) for row in cos_WW.tolist())
    return values


def _in_window(sketch_WK: Tensor, window: DirectionWindow) -> dict[str, Any]:
    """Directions add up inside a window; a step that is not finite everywhere stays out of the sum."""
    unit_WK = torch.nn.functional.normalize(sketch_WK, dim=1)
    window.direction_WK = unit_WK if window.direction_WK is None else window.direction_WK.add_(unit_WK)
    return _summed(gram.leave_one_out(gram.gram(window.direction_WK)), window)


def _summed(cos_W: Tensor, window: DirectionWindow) -> dict[str, Any]:
    window.steps += 1
    return {"window_start": window.start, "window_steps": window.steps, "window_cos_W": floats(cos_W.tolist())}


def _by_sums(
    sketch_WK: Tensor, sent_W: Tensor, square_W: Tensor, mean_square: float | None, window: DirectionWindow
) -> tuple[dict[str, Any], float | None]:
    if window.of_many is None:
        window.of_many = many_workers.SummedDirections.none(*sketch_WK.shape)
    everybody = bool((sent_W & square_W.isfinite()).all())
    found = many_workers.ManyWorkers(sketch_WK, square_W, sent_W).look(window.of_many if everybody else None)
    if mean_square is not None:
        found = many_workers.shift_to_mean(found, mean_square)
    elif everybody:
        mean_square = _square(float(found.gradients.whole) / len(square_W) ** 2)
    values: dict[str, Any] = {
        "cos_W": floats(many_workers.leave_one_out(found.gradients).tolist()),
        "cos_mean": or_none(many_workers.mean_pairwise(found)),
    }
    if found.window is not None:
        values |= _summed(many_workers.leave_one_out(found.window), window)
    return values, mean_square


def _square(number: float) -> float | None:
    return max(0.0, number) if math.isfinite(number) else None
