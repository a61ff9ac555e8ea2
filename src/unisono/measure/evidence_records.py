"""Rank 0 puts the ranks' messages on one matter together and lays them side by side, as a record."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from unisono.exchange.epoch_coverage import share_of, together
from unisono.measure.compare_evidence import twins
from unisono.records import BatchRecord, CoverageRecord, FactsRecord, ReplicasRecord, StreamsRecord

REMEMBERED = 1_000
PATIENCE = 10.0
"""Seconds a matter waits for a rank before it is written down without it."""

COMPARISONS = ("audit/", "detail/")
"""In these, one voice alone would say that nothing differs."""

OF_EACH_RANK = ("sampler rank",)
"""Facts that every rank has of its own: what one alone has said is not what the others have."""

OWN_SHARE = 0.01
MOST_NAMED = 8
EvidenceRecord = FactsRecord | ReplicasRecord | CoverageRecord | StreamsRecord | BatchRecord
Messages = list[Mapping[str, Any] | None]


@dataclass(slots=True)
class _Matter:
    opened: float
    messages: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class EvidenceRecords:
    def __init__(self, world: int, attempt: int) -> None:
        self._world, self._attempt = world, attempt
        self._open: dict[str, _Matter] = {}
        self._closed: deque[str] = deque(maxlen=REMEMBERED)

    def add(self, worker: int, message: Mapping[str, Any]) -> None:
        key = str(message["key"])
        if key not in self._open and key in self._closed:
            return
        self._open.setdefault(key, _Matter(time.monotonic())).messages[worker] = message

    def complete(self, expected: Collection[int], everything: bool = False) -> Iterator[EvidenceRecord]:
        """Matters on which all expected ranks have spoken, or that have waited long enough."""
        wanted = set(expected)
        for key, matter in list(self._open.items()):
            alone = key.startswith("batch/")
            late = everything or time.monotonic() - matter.opened > PATIENCE
            if late or alone or matter.messages.keys() >= wanted:
                del self._open[key]
                self._closed.append(key)
                message_W: Messages = [matter.messages.get(worker) for worker in range(self._world)]
                if len(matter.messages) > 1 or not key.startswith(COMPARISONS):
                    yield self._record(message_W)

    def _record(self, message_W: Messages) -> EvidenceRecord:
        first = next(message for message in message_W if message is not None)
        head = {"attempt": self._attempt, "step": int(first["step"]), "time": time.time()}
        return _RECORDS[first["kind"]](head, message_W, first)


def _facts(head: dict[str, Any], message_W: Messages, first: Mapping[str, Any]) -> FactsRecord:
    return facts_record(head, first["topic"], [None if message is None else message["facts"] for message in message_W])


def facts_record(head: dict[str, Any], topic: str, facts_W: list[Mapping[str, str] | None]) -> FactsRecord:
    """What the workers say of themselves, split into what they agree on and what they do not."""
    names = dict.fromkeys(name for facts in facts_W if facts is not None for name in facts)
    alone = sum(facts is not None for facts in facts_W) == 1 < len(facts_W)
    same: dict[str, str] = {}
    differ: dict[str, tuple[str | None, ...]] = {}
    for name in names:
        value_W = tuple(None if facts is None else facts.get(name, "") for facts in facts_W)
        known = {value for value in value_W if value is not None}
        if len(known) == 1 and not (alone and name in OF_EACH_RANK):
            same[name] = known.pop()
        else:
            differ[name] = value_W
    return FactsRecord(**head, topic=topic, same=same, differ=differ)


def _streams(head: dict[str, Any], message_W: Messages, first: Mapping[str, Any]) -> StreamsRecord:
    names = sorted({name for message in message_W if message is not None for name in message["drawn"]})
    states = {name: [None if m is None else m["drawn"].get(name) for m in message_W] for name in names}
    shared = {name: twins(state_W) for name, state_W in states.items() if _any_shared(state_W)}
    return StreamsRecord(**head, consumed=tuple(names), same=shared)


def _any_shared(values_W: list[Any]) -> bool:
    known = [value for value in values_W if value is not None]
    return len(set(known)) < len(known)


def _coverage(head: dict[str, Any], message_W: Messages, first: Mapping[str, Any]) -> CoverageRecord:
    draws_W = [None if message is None else message["draws"] for message in message_W]
    return CoverageRecord(
        **head,
        loader=first["loader"],
        epoch=first["epoch"],
        complete=first["complete"],
        drawn_W=tuple(None if draws is None else draws["drawn"] for draws in draws_W),
        distinct_W=tuple(None if draws is None else draws["distinct"] for draws in draws_W),
        distinct=together([draws for draws in draws_W if draws is not None]),
        dataset=first["dataset"],
        repeated_W=tuple(None if message is None else message["repeated"] for message in message_W),
        held_out=_held_out(message_W),
    )


def _held_out(message_W: Messages) -> float | None:
    """The largest share of the samples that a worker evaluates, but does not train on, that others train on."""
    known = [message for message in message_W if message is not None]
    if not any(message["evaluated"]["drawn"] for message in known):
        return None
    owners = Counter(sample for message in known for sample in set(message["draws"]["kept"]))
    levels = [0, *sorted(message["draws"]["level"] for message in known)]
    shares = []
    for message in known:
        evaluated, own = message["evaluated"], message["draws"]
        if evaluated["drawn"]:
            # Of what the others have drawn only what this one evaluates matters: so work does not grow with W squared.
            mine = set(own["kept"])
            kept = [sample for sample in evaluated["kept"] if owners[sample] > (sample in mine)]
            others = {"kept": kept, "level": levels[-2] if own["level"] == levels[-1] else levels[-1]}
            # Who evaluates what it trains on holds nothing out.
            shares.append(share_of(evaluated, [others]) if share_of(evaluated, [own]) < OWN_SHARE else 0.0)
    return max(shares)


def _audit(head: dict[str, Any], message_W: Messages, first: Mapping[str, Any]) -> ReplicasRecord:
    """Names the parameters whose fingerprints differ."""
    prints_W = [None if message is None else message["prints"] for message in message_W]
    names = _differing(first["prints"], prints_W)
    whole_W = [None if prints is None else str([prints.get(name) for name in names]) for prints in prints_W]
    return ReplicasRecord(
        **head,
        compared=len(first["prints"]),
        differing=len(names),
        parameters=tuple(names[:MOST_NAMED]),
        weights_W=twins(whole_W) if names else (),
    )


def _detail(head: dict[str, Any], message_W: Messages, first: Mapping[str, Any]) -> ReplicasRecord:
    """Tells how far apart the replicas are, from the distance of random projections of each parameter."""
    projected_W = [None if message is None else message["projections"] for message in message_W]
    names = _differing(first["projections"], projected_W)
    whole_W = [None if projected is None else str([projected.get(name) for name in names]) for projected in projected_W]
    reference = _most_common(whole_W, projected_W)
    return ReplicasRecord(
        **head,
        compared=len(first["projections"]),
        differing=len(names),
        parameters=tuple(names[:MOST_NAMED]),
        weights_W=twins(whole_W) if names else (),
        distance_W=tuple(None if p is None else _distance(p, reference, names) for p in projected_W) if names else (),
    )


def _differing(names: Iterable[str], told_W: list[Any]) -> list[str]:
    """Where all have told; a rank that listened differently has not told the same names."""
    known = [told for told in told_W if told is not None]
    common = [name for name in names if all(name in told for told in known)]
    return [name for name in common if len({str(told[name]) for told in known}) > 1]


def _most_common(whole_W: list[str | None], projected_W: list[Any]) -> Any:
    most, _ = Counter(whole for whole in whole_W if whole is not None).most_common(1)[0]
    return projected_W[whole_W.index(most)]


def _distance(projected: Mapping[str, Any], reference: Mapping[str, Any], names: list[str]) -> float:
    """Each projection's square is on average the squared norm of what is projected."""
    pairs = [(one, other) for name in names for one, other in zip(projected[name], reference[name], strict=True)]
    apart = math.fsum((one - other) ** 2 for one, other in pairs)
    size = math.fsum(other**2 for _, other in pairs)
    return math.sqrt(apart / size) if size else math.inf


def _batch(head: dict[str, Any], message_W: Messages, first: Mapping[str, Any]) -> BatchRecord:
    return BatchRecord(**head, rank=first["rank"], loss=first["loss"], indices=tuple(first["indices"]))


_RECORDS: dict[str, Callable[..., EvidenceRecord]] = {
    "facts": _facts,
    "streams": _streams,
    "coverage": _coverage,
    "audit": _audit,
    "detail": _detail,
    "batch": _batch,
}
