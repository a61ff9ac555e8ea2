"""What steering did in a run, in one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from unisono.records import StepRecord, left_out

STANDS_OUT = 0.1
"""A worker is named that was left out of so many more steps than the worker in the middle."""


class SteeringSummary:
    """Counts, step by step; nothing is counted without steering."""

    def __init__(self) -> None:
        self.steps = self.skipped = 0
        self._kept = 0
        self._told = 0
        """Steps of which it is known who was left out."""

        self._left_out: Counter[int] = Counter()

    def add(self, record: StepRecord) -> None:
        if record.kept_workers is None:
            return
        self.steps += 1
        self.skipped += record.kept_workers == 0
        self._kept += record.kept_workers
        rejected = left_out(record)
        if rejected is not None:
            self._told += 1
            self._left_out.update(rejected)

    def words(self, ranks: Sequence[int]) -> str:
        """
        :param ranks: The launcher's numbers of all workers.
        """
        taken = self.steps - self.skipped
        skipped = f"{self.skipped} step{'s' * (self.skipped != 1)} skipped"
        if not taken:
            return f"kept no worker, {skipped}"
        if self._kept == taken * len(ranks):
            return f"kept all {len(ranks)} workers, {skipped}"
        kept = f"kept {self._kept / taken:.2f} of {len(ranks)} workers on average, {skipped}"
        return ", ".join([kept, *self._most_often_left_out(ranks)])

    def _most_often_left_out(self, ranks: Sequence[int]) -> list[str]:
        if not self._told:
            return []
        share_W = [self._left_out[worker] / self._told for worker in range(len(ranks))]
        most = max(range(len(ranks)), key=share_W.__getitem__)
        if share_W[most] < sorted(share_W)[len(ranks) // 2] + STANDS_OUT:
            return []
        return [f"rank {ranks[most]} left out of {100 * share_W[most]:.0f} % of the steps taken"]
