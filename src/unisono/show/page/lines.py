"""Time lines in bounded memory: for each stretch of steps the mean, and the smallest and largest value in it.

L = lines, N = records of a block, W = workers, T = stretches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unisono.show.page.stretches import Array, Stretches

MOST = 512

STEP_LINES = {
    "loss": ("loss_mean", "loss_W"),
    "loss_std": ("loss_std", None),
    "norm": ("grad_norm", "norm_W"),
    "norm_cv": ("grad_norm_cv", None),
    "cos": ("cos_mean", "cos_W"),
    "cos_expected": ("cos_expected", None),
    "noise_scale": ("noise_scale", None),
    "effective_workers": ("effective_workers", None),
    "kept_workers": ("kept_workers", None),
    "seconds": (None, "step_W"),
}
"""Each with the field of its line and the one that gives the band; without the latter the line's own extremes do."""

VALIDATION = "validation"
LINES = (*STEP_LINES, VALIDATION)


@dataclass(frozen=True, slots=True)
class Line:
    """Stretches in which something was known; NaN where it was no finite number."""

    step_T: Array
    mean_T: Array
    low_T: Array
    high_T: Array
    broken: int
    """Steps at which it was no finite number."""

    @property
    def is_empty(self) -> bool:
        return not np.isfinite(self.mean_T).any()

    def finite(self) -> Line:
        known = np.isfinite(self.mean_T)
        return Line(self.step_T[known], self.mean_T[known], self.low_T[known], self.high_T[known], self.broken)


class Lines:
    def __init__(self) -> None:
        self.stretches = Stretches(MOST)
        shape = (len(LINES), MOST)
        self._low_LT = np.full(shape, np.inf)
        self._high_LT = np.full(shape, -np.inf)
        self._sum_LT = np.zeros(shape)
        self._count_LT = np.zeros(shape)
        self._broken_LT = np.zeros(shape)

    def restart(self, step: int) -> None:
        """A new attempt takes the place of all that was done from its first step on."""
        left = self.stretches.cut(step)
        if not left:
            self.stretches.begin(step)
        self._clear(left)

    def add(self, name: str, step_N: Array, value_N: Array, value_NW: Array | None, broken_N: Array) -> None:
        """
        :param broken_N: Where the value was measured, and is no finite number.
        """
        line, place_N = LINES.index(name), self.stretches.places(step_N)
        inside = value_N[:, None] if value_NW is None or not value_NW.shape[1] else value_NW
        # The workers' values may not be known where their mean is.
        inside = np.where(np.isfinite(inside).any(axis=1, keepdims=True), inside, value_N[:, None])
        finite = np.isfinite(inside)
        np.minimum.at(self._low_LT[line], place_N, np.where(finite, inside, np.inf).min(axis=1))
        np.maximum.at(self._high_LT[line], place_N, np.where(finite, inside, -np.inf).max(axis=1))
        known = np.isfinite(value_N)
        np.add.at(self._sum_LT[line], place_N[known], value_N[known])
        np.add.at(self._count_LT[line], place_N[known], 1)
        np.add.at(self._broken_LT[line], place_N[broken_N], 1)

    def make_room(self, step: int) -> None:
        for _ in range(self.stretches.reach(step)):
            self._low_LT = _halved(self._low_LT, np.inf, np.minimum)
            self._high_LT = _halved(self._high_LT, -np.inf, np.maximum)
            self._sum_LT = _halved(self._sum_LT, 0, np.add)
            self._count_LT = _halved(self._count_LT, 0, np.add)
            self._broken_LT = _halved(self._broken_LT, 0, np.add)

    def line(self, name: str) -> Line:
        line, count = LINES.index(name), self.stretches.count
        count_T, broken_T = self._count_LT[line, :count], self._broken_LT[line, :count]
        known = np.flatnonzero(count_T + broken_T)
        mean_T = self._sum_LT[line, known] / np.where(count_T[known] > 0, count_T[known], np.nan)
        low_T, high_T = self._low_LT[line, known], self._high_LT[line, known]
        low_T, high_T = np.where(np.isfinite(low_T), low_T, mean_T), np.where(np.isfinite(high_T), high_T, mean_T)
        return Line(self.stretches.centres()[known], mean_T, low_T, high_T, int(broken_T.sum()))

    def _clear(self, left: int) -> None:
        self._low_LT[:, left:], self._high_LT[:, left:] = np.inf, -np.inf
        self._sum_LT[:, left:], self._count_LT[:, left:], self._broken_LT[:, left:] = 0, 0, 0


def _halved(value_LT: Array, empty: float, combine: np.ufunc) -> Array:
    halved = np.full_like(value_LT, empty)
    halved[:, : MOST // 2] = combine(value_LT[:, ::2], value_LT[:, 1::2])
    return halved
