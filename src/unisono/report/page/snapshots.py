"""Matrices as they were stored at single readings: pairs of workers, and layers by rank. Bounded in number and size.

W = workers, G = layer groups.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from unisono.records import FloatRows, StepRecord

MOST, MOST_CELLS = 64, 120_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    step: int
    cos_WW: FloatRows
    norm_GW: FloatRows
    cos_GW: FloatRows

    @property
    def cells(self) -> int:
        return sum(len(row) for rows in (self.cos_WW, self.norm_GW, self.cos_GW) for row in rows)


class Snapshots:
    """Every so many of the stored readings, in order of steps, and always the newest one."""

    def __init__(self) -> None:
        self._kept: list[Snapshot] = []
        self._newest: Snapshot | None = None
        self._every, self._seen = 1, 0
        self._attempt: int | None = None

    def see(self, record: StepRecord) -> None:
        if record.attempt != self._attempt:
            self._attempt = record.attempt
            self._kept = [snapshot for snapshot in self._kept if snapshot.step < record.step]
            self._newest = self._kept[-1] if self._kept else None
        if not record.cos_WW and not record.norm_GW:
            return
        self._newest = Snapshot(record.step, record.cos_WW, record.norm_GW, record.cos_GW)
        if self._kept and not _same_shape(self._kept[-1], self._newest):
            self._kept, self._every, self._seen = [], 1, 0
        if self._seen % self._every == 0:
            self._kept.append(self._newest)
        self._seen += 1
        while len(self._kept) > max(2, min(MOST, MOST_CELLS // max(1, self._newest.cells))):
            self._kept, self._every = self._kept[::2], 2 * self._every

    def all(self) -> list[Snapshot]:
        if self._newest is None or (self._kept and self._kept[-1] is self._newest):
            return list(self._kept)
        return [*self._kept, self._newest]


def nearest(snapshots: list[Snapshot], step: int) -> int:
    """The place of the first one at or after a step, else of the last one."""
    return min(bisect_left([snapshot.step for snapshot in snapshots], step), len(snapshots) - 1)


def _same_shape(one: Snapshot, other: Snapshot) -> bool:
    return (len(one.cos_WW), len(one.norm_GW)) == (len(other.cos_WW), len(other.norm_GW))
