"""The steps of a run as lines and as rank maps, in bounded memory however long the run is.

N = records of a block, W = workers.
"""

from __future__ import annotations

import numpy as np

from unisono.records import StepRecord, ValidationRecord
from unisono.records.global_norm import GlobalNorm
from unisono.show.page.lines import STEP_LINES, VALIDATION, Line, Lines
from unisono.show.page.rankmaps import MAPS, RankMap, losses_beside_median, norms_beside_median
from unisono.show.page.stretches import Array

BLOCK, BLOCK_VALUES = 1_024, 32_768
"""Records that are worked in at once, fewer with many workers: one by one would cost ten times as much."""

SUMMED = 8


class Timeline:
    """An attempt takes the place of all that earlier ones did from its first step on."""

    def __init__(self) -> None:
        self.workers = 0
        self.first_step: int | None = None
        self.last_step = 0
        self._lines = Lines()
        self._maps: dict[str, RankMap] = {}
        self._pending: list[StepRecord] = []
        self._validations: list[ValidationRecord] = []
        self._norm = GlobalNorm()
        self._attempt: int | None = None
        self._turned_over_at = 0

    def see(self, record: StepRecord) -> None:
        workers = len(record.step_W) or len(record.loss_W) or len(record.norm_W) or self.workers
        if record.attempt != self._attempt or workers != self.workers:
            self._turn_over(record, workers)
        if record.step < self._turned_over_at:
            return  # too late to be given a place
        self._pending.append(record)
        self.last_step = max(self.last_step, record.step)
        if len(self._pending) >= min(BLOCK, max(1, BLOCK_VALUES // max(1, self.workers))):
            self._work_in()

    def see_validation(self, record: ValidationRecord) -> None:
        """It stands behind its step in the file; what was recorded before the first step has no place."""
        if record.attempt == self._attempt and self._turned_over_at <= record.step <= self.last_step:
            self._validations.append(record)

    def line(self, name: str) -> Line:
        self._work_in()
        return self._lines.line(name)

    def map(self, name: str) -> RankMap | None:
        self._work_in()
        return self._maps.get(name)

    def _turn_over(self, record: StepRecord, workers: int) -> None:
        self._work_in()
        self._turned_over_at = record.step
        if workers != self.workers:
            self.workers = workers
            self._maps = {name: RankMap(workers) for name in MAPS} if workers > 1 else {}
        if record.attempt != self._attempt:
            self._attempt, self.last_step = record.attempt, record.step
            if self.first_step is None or record.step < self.first_step:
                self.first_step = record.step
            self._lines.restart(record.step)
        for rank_map in self._maps.values():
            rank_map.restart(record.step)

    def _work_in(self) -> None:
        records, self._pending = self._pending, []
        if records:
            self._draw_steps(records)
        if self._validations:
            self._draw_validations()

    def _draw_steps(self, records: list[StepRecord]) -> None:
        step_N = np.array([record.step for record in records])
        newest = int(step_N.max())
        self._lines.make_room(newest)
        for rank_map in self._maps.values():
            rank_map.make_room(newest)
        self._draw_lines(records, step_N)
        if self._maps:
            self._draw_maps(records, step_N)

    def _draw_lines(self, records: list[StepRecord], step_N: Array) -> None:
        for name, (mean, each) in STEP_LINES.items():
            value_NW = None if each is None else _per_worker(records, each, self.workers)
            if mean is None:
                value_N, broken_N = _means(value_NW), np.zeros(len(records), dtype=bool)
            else:
                values = [self._norm.of(record) if name == "norm" else getattr(record, mean) for record in records]
                value_N = np.array(values, dtype=float)
                broken_N = ~np.isfinite(value_N) & np.array([value is not None for value in values])
            self._lines.add(name, step_N, value_N, value_NW, broken_N)

    def _draw_validations(self) -> None:
        validations, self._validations = self._validations, []
        step_N = np.array([record.step for record in validations], dtype=int)
        value_N = np.array([record.validation for record in validations], dtype=float)
        self._lines.add(VALIDATION, step_N, value_N, None, ~np.isfinite(value_N))

    def _draw_maps(self, records: list[StepRecord], step_N: Array) -> None:
        heard = [place for place, record in enumerate(records) if record.heard]
        if heard:
            readings = [records[place] for place in heard]
            norm_NW = _broken(readings, _per_worker(readings, "norm_W", self.workers))
            self._maps["norm"].add(step_N[heard], norms_beside_median(norm_NW))
            self._maps["cos"].add(step_N[heard], _per_worker(readings, "cos_W", self.workers))
            self._draw_window(readings, step_N[heard])
        loss_NW = _broken(records, _per_worker(records, "loss_W", self.workers))
        self._maps["loss"].add(step_N, losses_beside_median(loss_NW))

    def _draw_window(self, readings: list[StepRecord], step_N: Array) -> None:
        """Sums of a few readings are left out: they are as noisy as single ones. Where there is none, that is shown."""
        summed = [place for place, record in enumerate(readings) if (record.window_steps or SUMMED) >= SUMMED]
        if summed:
            cos_NW = _per_worker([readings[place] for place in summed], "window_cos_W", self.workers)
            self._maps["window"].add(step_N[summed], cos_NW)


def _per_worker(records: list[StepRecord], field: str, workers: int) -> Array:
    unknown = (None,) * workers
    rows = (getattr(record, field) for record in records)
    return np.array([row if len(row) == workers else unknown for row in rows], dtype=float)


def _broken(records: list[StepRecord], value_NW: Array) -> Array:
    """What is not finite stands out: a NaN that was measured is not the same as a value that is not known."""
    for row, record in enumerate(records):
        if False in record.finite_W and len(record.finite_W) == value_NW.shape[1]:
            value_NW[row, [worker for worker, finite in enumerate(record.finite_W) if finite is False]] = np.inf
    return value_NW


def _means(value_NW: Array | None) -> Array:
    if value_NW is None:
        raise ValueError("a line without a field of its own needs the workers' values")
    finite_NW = np.isfinite(value_NW)
    sum_N: Array = np.where(finite_NW, value_NW, 0).sum(axis=1)
    return sum_N / np.where(finite_NW.any(axis=1), finite_NW.sum(axis=1), np.nan)
