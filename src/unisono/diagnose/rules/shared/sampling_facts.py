"""What the loader's facts say about how samples are drawn."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.records import FactsRecord


def is_divided(facts: FactsRecord) -> bool:
    """A sampler divides one dataset among the workers. One replica: each worker goes through all it has."""
    replicas = {facts.same.get("sampler replicas"), *facts.differ.get("sampler replicas", ())}
    return bool(replicas - {None, "1"})


def draws_again(facts: FactsRecord | None) -> bool:
    """Samples are drawn with replacement."""
    if facts is None:
        return False
    return "yes" in (facts.same.get("replacement"), *facts.differ.get("replacement", ()))


def stuck(before_W: Sequence[str | None], now_W: Sequence[str | None]) -> list[int]:
    """The workers whose value is that of the pass before; nobody where all or no known ones are."""
    pairs = [(worker, *pair) for worker, pair in enumerate(zip(before_W, now_W, strict=False)) if None not in pair]
    same = [worker for worker, before, now in pairs if before == now]
    return same if len(same) < len(pairs) else []
