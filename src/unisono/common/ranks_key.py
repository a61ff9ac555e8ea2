"""A short name for a set of ranks, the same on all of them: stores refuse keys of more than 8,192 bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

LONGEST = 64


def group_key(ranks: Sequence[int]) -> str:
    name = "-".join(map(str, ranks))
    if len(name) <= LONGEST:
        return name
    return f"{len(ranks)}-ranks-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"
