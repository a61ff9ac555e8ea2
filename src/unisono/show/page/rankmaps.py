"""Rank by step, in bounded memory: for each rank and stretch of steps the value furthest from the other workers'.

N = records of a block, W = workers, R = rows (ranks, or groups of them where there are many), T = stretches.
"""

from __future__ import annotations

import numpy as np

from unisono.show.page.stretches import Array, Stretches

MOST, MOST_ROWS = 256, 256

MAPS = ("window", "cos", "norm", "loss")


class RankMap:
    """One value per rank and stretch; infinite where the worker's value was not finite, NaN where nothing is known."""

    def __init__(self, workers: int) -> None:
        self.stretches = Stretches(MOST)
        self.workers = workers
        self.per_row = max(1, -(-workers // MOST_ROWS))
        rows = -(-workers // self.per_row)
        self._value_RT = np.full((rows, MOST), np.nan)
        self._distance_RT = np.full((rows, MOST), -1.0)
        self._heard_T = np.zeros(MOST, dtype=bool)

    def restart(self, step: int) -> None:
        left = self.stretches.cut(step)
        if not left:
            self.stretches.begin(step)
        self._value_RT[:, left:], self._distance_RT[:, left:], self._heard_T[left:] = np.nan, -1.0, False

    def make_room(self, step: int) -> None:
        for _ in range(self.stretches.reach(step)):
            heard_T = np.zeros_like(self._heard_T)
            heard_T[: MOST // 2] = self._heard_T[::2] | self._heard_T[1::2]
            self._heard_T = heard_T
            odd = self._distance_RT[:, 1::2] > self._distance_RT[:, ::2]
            for name in ("_value_RT", "_distance_RT"):
                values = getattr(self, name)
                halved = np.full_like(values, np.nan if name == "_value_RT" else -1.0)
                halved[:, : MOST // 2] = np.where(odd, values[:, 1::2], values[:, ::2])
                setattr(self, name, halved)

    def add(self, step_N: Array, value_NW: Array) -> None:
        value_NR, distance_NR = self._by_row(value_NW, _distances(value_NW))
        place_N = self.stretches.places(step_N)
        self._heard_T[place_N] = True
        for place in np.unique(place_N):
            inside = np.flatnonzero(place_N == place)
            furthest_R = inside[distance_NR[inside].argmax(axis=0)]
            row_R = np.arange(distance_NR.shape[1])
            distance_R = distance_NR[furthest_R, row_R]
            further = distance_R > self._distance_RT[:, place]
            self._value_RT[further, place] = value_NR[furthest_R, row_R][further]
            self._distance_RT[further, place] = distance_R[further]

    def filled(self) -> Array:
        """Between readings the last one stands; what a reading could not tell stays unknown."""
        value_RT = self._value_RT[:, : self.stretches.count]
        heard = np.flatnonzero(self._heard_T[: self.stretches.count])
        if not len(heard):
            return value_RT
        newest = heard[np.maximum(np.searchsorted(heard, np.arange(self.stretches.count), side="right") - 1, 0)]
        filled_RT = value_RT[:, newest]
        filled_RT[:, : heard[0]] = np.nan
        return filled_RT

    def _by_row(self, value_NW: Array, distance_NW: Array) -> tuple[Array, Array]:
        if self.per_row == 1:
            return value_NW, distance_NW
        missing = -len(value_NW[0]) % self.per_row
        values = np.pad(value_NW, ((0, 0), (0, missing)), constant_values=np.nan).reshape(
            len(value_NW), -1, self.per_row
        )
        distances = np.pad(distance_NW, ((0, 0), (0, missing)), constant_values=-1.0).reshape(values.shape)
        furthest = distances.argmax(axis=2)[..., None]
        return np.take_along_axis(values, furthest, 2)[..., 0], np.take_along_axis(distances, furthest, 2)[..., 0]


def norms_beside_median(norm_NW: Array) -> Array:
    """How often the norm doubles on the way from the workers' median to each worker's."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _beside(np.log2(norm_NW), np.log2(_medians(norm_NW)))


def losses_beside_median(loss_NW: Array) -> Array:
    return _beside(loss_NW, _medians(loss_NW))


def _beside(value_NW: Array, median_N1: Array) -> Array:
    """What is infinite stays so where no worker is left to compare it with."""
    return np.where(np.isposinf(value_NW), np.inf, value_NW - median_N1)


def _distances(value_NW: Array) -> Array:
    distance_NW = np.where(np.isinf(value_NW), np.inf, np.abs(value_NW - _medians(value_NW)))
    return np.where(np.isnan(distance_NW), -1.0, distance_NW)


def _medians(value_NW: Array) -> Array:
    """Of what is finite in each row; `np.nanmedian` takes five times as long."""
    sorted_NW = np.sort(np.where(np.isfinite(value_NW), value_NW, np.nan), axis=1)  # NaN comes last
    count_N = np.isfinite(value_NW).sum(axis=1)
    middle_N2 = np.stack([np.maximum(count_N - 1, 0) // 2, count_N // 2], axis=1)
    middle_N2 = np.minimum(middle_N2, value_NW.shape[1] - 1)
    median_N: Array = np.take_along_axis(sorted_NW, middle_N2, axis=1).mean(axis=1)
    return median_N[:, None]
