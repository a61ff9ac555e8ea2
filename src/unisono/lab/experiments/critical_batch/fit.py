"""The batch size beyond which larger ones hardly pay, from the steps that each size takes.

After McCandlish et al. 2018 (arXiv 1812.06162): `steps = fewest (1 + critical / batch)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from unisono.common.errors import UserError

FEWEST_SIZES = 3
SMALLEST, LARGEST, FINENESS = 0.1, 1e6, 1.005
STUDENT_T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782)
"""Of 1, 2, ... degrees of freedom, 5 % on either side."""


@dataclass(frozen=True)
class CriticalBatch:
    value: float
    low: float
    high: float
    """An interval of 90 %, from how far the sizes lie off the curve; infinite where they set no upper end."""

    fewest_steps: float
    off: float
    """Typical factor by which the steps of a size lie off the curve."""

    def steps(self, batch: float) -> float:
        return self.fewest_steps * (1 + self.value / batch)


def fitted(steps: Mapping[int, float]) -> CriticalBatch:
    """Least squares of the logarithms: an error by a tenth counts the same at every size.

    :param steps: For each batch size, the geometric mean over its seeds.
    """
    if len(steps) < FEWEST_SIZES:
        raise UserError(f"A critical batch size takes {FEWEST_SIZES} batch sizes. Found {len(steps)}. Train more.")
    count = math.ceil(math.log(LARGEST / SMALLEST, FINENESS))
    tried = [SMALLEST * FINENESS**number for number in range(count + 1)]
    errors = [_square_error(steps, critical) for critical in tried]
    least = min(errors)
    freedom = len(steps) - 2
    limit = least * (1 + STUDENT_T[min(freedom, len(STUDENT_T)) - 1] ** 2 / freedom)
    inside = [critical for critical, error in zip(tried, errors, strict=True) if error <= limit]
    best = tried[errors.index(least)]
    fewest = math.exp(fmean(_residuals(steps, best)))
    high = inside[-1] if inside[-1] < tried[-1] else math.inf
    return CriticalBatch(best, inside[0], high, fewest, math.exp(math.sqrt(least / freedom)))


def _residuals(steps: Mapping[int, float], critical: float) -> list[float]:
    return [math.log(taken) - math.log1p(critical / batch) for batch, taken in steps.items()]


def _square_error(steps: Mapping[int, float], critical: float) -> float:
    residuals = _residuals(steps, critical)
    middle = fmean(residuals)
    return math.fsum((residual - middle) ** 2 for residual in residuals)
