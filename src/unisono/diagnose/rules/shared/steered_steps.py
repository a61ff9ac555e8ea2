"""What steering did at the steps of a run, for the rules.

W = workers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable

from unisono.records import StepRecord


def applied_norm(record: StepRecord) -> float | None:
    """Norm of the mean gradient, but not more than what steering can have made of the workers' gradients.

    The mean of all may be huge by a worker that was left out.
    """
    if record.grad_norm is None or record.kept_workers is None:
        return record.grad_norm
    if not record.kept_workers:
        return 0.0
    if not record.weight_W or not record.norm_W:
        return record.grad_norm
    pairs = zip(record.weight_W, record.norm_W, strict=True)
    return min(record.grad_norm, sum(abs(weight) * norm for weight, norm in pairs if weight and norm is not None))


class Marks:
    """Who or what was marked at the last steps of a kind."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._steps: deque[tuple[int, frozenset[Hashable]]] = deque()
        self._count: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, marked: Collection[Hashable]) -> None:
        # A set: of many that are marked, each is looked up at every step.
        self._steps.append((step, frozenset(marked)))
        self._count.update(self._steps[-1][1])
        if len(self._steps) > self._size:
            self._count.subtract(self._steps.popleft()[1])

    def count(self, who: Hashable) -> int:
        return self._count[who]

    def share(self, who: Hashable) -> float:
        return self._count[who] / len(self._steps) if self._steps else 0.0

    def since(self, who: Hashable) -> int | None:
        """The step from which on marked steps have outnumbered the others most clearly."""
        best, balance, since = 0, 0, None
        for step, marked in reversed(self._steps):
            balance += 1 if who in marked else -1
            if balance > best:
                best, since = balance, step
        return since
