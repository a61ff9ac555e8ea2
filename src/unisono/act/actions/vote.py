"""Whose replica the others take: that of the largest camp of equal ones, or else that of the first worker.

W = workers, K = kinds of what is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def givers(print_KW: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
    """
    The worker whom the others take all kinds from, and the one they take each kind from.

    The first is the lowest one that is in the largest camp in as many kinds as possible. Where a kind has a largest
    camp without it, that kind comes from the lowest of the camp.
    """
    camps = [_largest_camp(print_W) for print_W in print_KW]
    workers = range(len(print_KW[0]))
    source = max(workers, key=lambda worker: (sum(worker in camp for camp in camps), -worker))
    return source, [source if not camp or source in camp else min(camp) for camp in camps]


def _largest_camp(print_W: Sequence[int]) -> frozenset[int]:
    """Nobody, where two camps are as large as each other."""
    (first, size), *others = Counter(print_W).most_common(2)
    if others and others[0][1] == size:
        return frozenset()
    return frozenset(worker for worker, found in enumerate(print_W) if found == first)
