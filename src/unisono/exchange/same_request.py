"""Workers that act differently would wait for each other in vain: before the first step they compare what they want."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import timedelta
from typing import Any

import torch.distributed

from unisono.exchange.store import group_key

dist: Any = torch.distributed  # its stores are not in its annotations
PATIENCE = 60.0
"""Seconds within which all workers should have asked for the same."""

_times: Counter[tuple[str, tuple[int, ...]]] = Counter()


def check_same(topic: str, wanted: str, rank: int, ranks: list[int]) -> None:
    """Through the job's store, where nobody can hang.

    :param rank: This worker's place among `ranks`, which are the launcher's numbers.
    """
    key = topic, tuple(ranks)
    nth, _times[key] = _times[key], _times[key] + 1
    name = f"unisono-{topic}/{group_key(ranks)}/{nth}"
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    mine = hashlib.blake2b(wanted.encode(), digest_size=16).hexdigest().encode()
    store.set(str(rank), mine)
    keys = [str(place) for place in range(len(ranks))]
    try:
        store.wait(keys, timedelta(seconds=PATIENCE))
    except RuntimeError:
        missing = [str(other) for other, place in zip(ranks, keys, strict=True) if not store.check([place])]
        raise ValueError(
            f"Every worker should ask for {topic}. Found nothing of it from rank {', '.join(missing[:8])} in "
            f"{PATIENCE:.0f} s. Call attach with the same arguments on every rank."
        ) from None
    others = [other for other, place in zip(ranks, keys, strict=True) if store.get(place) != mine]
    if others:
        raise ValueError(
            f"Every worker should ask for the same {topic}. Found other settings or parameters on rank {others[0]} "
            f"than on rank {ranks[rank]}. Call attach with the same arguments on every rank."
        )
