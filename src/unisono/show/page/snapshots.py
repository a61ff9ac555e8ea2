"""Matrices as they were stored at single readings: pairs of workers, and layers by rank. Bounded in number and size.

W = workers, G = layer groups.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from unisono.records import FloatRows, StepRecord

MOST, MOST_CELLS = 64, 120_000


@dataclass(frozen=True, slots=True)
class MatrixSnapshot:
    step: int
    cos_WW: FloatRows
    norm_GW: FloatRows
    cos_GW: FloatRows

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        matrices = (self.cos_WW, self.norm_GW, self.cos_GW)
        return tuple((len(rows), len(rows[0])) if rows else (0, 0) for rows in matrices)

    @property
    def cells(self) -> int:
        return sum(rows * columns for rows, columns in self.shapes)

    def lacks_some_of(self, other: MatrixSnapshot) -> bool:
        """The same but for matrices that it does not have, as when a worker's directions are lost."""
        return all(mine in (theirs, (0, 0)) for mine, theirs in zip(self.shapes, other.shapes, strict=True))


class MatrixSnapshots:
    """Every so many of the stored readings, in order of steps, and always the newest one."""

    def __init__(self) -> None:
        self._kept: list[MatrixSnapshot] = []
        self._newest: MatrixSnapshot | None = None
        self._every, self._seen = 1, 0
        self._attempt: int | None = None

    def see(self, record: StepRecord) -> None:
        if record.attempt != self._attempt:
            self._attempt = record.attempt
            self._kept = [snapshot for snapshot in self._kept if snapshot.step < record.step]
            self._newest = self._kept[-1] if self._kept else None
        if not record.cos_WW and not record.norm_GW:
            return
        snapshot = MatrixSnapshot(record.step, record.cos_WW, record.norm_GW, record.cos_GW)
        if self._kept and snapshot.shapes != self._kept[-1].shapes:
            if snapshot.lacks_some_of(self._kept[-1]):
                return
            self._kept, self._every, self._seen = [], 1, 0
        self._newest = snapshot
        if self._seen % self._every == 0:
            self._kept.append(self._newest)
        self._seen += 1
        while len(self._kept) > max(2, min(MOST, MOST_CELLS // max(1, self._newest.cells))):
            self._kept, self._every = self._kept[::2], 2 * self._every

    def all(self) -> list[MatrixSnapshot]:
        if self._newest is None or (self._kept and self._kept[-1] is self._newest):
            return list(self._kept)
        return [*self._kept, self._newest]


def nearest(snapshots: list[MatrixSnapshot], step: int) -> int:
    """The place of the first one at or after a step, else of the last one."""
    return min(bisect_left([snapshot.step for snapshot in snapshots], step), len(snapshots) - 1)
