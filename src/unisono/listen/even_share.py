"""Work on parameters that are the same everywhere, split between the workers."""

from __future__ import annotations

from collections.abc import Sequence


def even_share(sizes: Sequence[int], worker: int, world: int) -> list[int]:
    """The places that fall to one worker: even by elements, and every worker knows the split."""
    total, seen, owners = max(1, sum(sizes)), 0, []
    for size in sizes:
        owners.append(min(world - 1, (seen + size // 2) * world // total))
        seen += size
    return [place for place, owner in enumerate(owners) if owner == worker]
