"""What a record says of workers, held against the attempt that it belongs to.

A damaged file can hold any number. What does not fit is left out by whoever reads, so that nothing is ever made in the
size of a number that the file does not bear out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import NamedTuple

from unisono.records.decision import DecisionRecord
from unisono.records.evidence import BatchRecord, CoverageRecord, FactsRecord, ReplicasRecord, StreamsRecord
from unisono.records.lines import Record, from_line, of_workers
from unisono.records.run import AttemptRecord, DepartureRecord, NoteRecord, StepRecord, ValidationRecord


class _Attempt(NamedTuple):
    world: int
    ranks: frozenset[int]
    groups: int


class KnownAttempts:
    """Reads records one after the other, those of several attempts in any order."""

    def __init__(self) -> None:
        self._by_number: dict[int, _Attempt] = {}
        self._newest: _Attempt | None = None

    def read(self, text: str) -> Record | None:
        """As `from_line`; `ValueError` also where the record does not fit its attempt."""
        record = from_line(text)
        if type(record) is AttemptRecord:
            ranks = frozenset(worker.rank for worker in record.workers)
            self._newest = _Attempt(record.world, ranks, len(record.groups))
            self._by_number[record.attempt] = self._newest
        elif self._newest is not None and record is not None:
            attempt = self._by_number.get(getattr(record, "attempt", -1), self._newest)
            _check(record, attempt)
        return record


def _check(record: Record, attempt: _Attempt) -> None:
    if type(record) is StepRecord:
        # All of a step's lists are of one length, and nearly every step has one of these.
        known = record.finite_W or record.loss_W or record.norm_W or next(filter(None, of_workers(record)), ())
        lists: Iterable[Sized] = (known,)
        if (layers := len(record.norm_G or record.norm_GW or record.cos_GW)) and attempt.groups:
            _compare("layer groups", layers, attempt.groups)
    else:
        lists = _lists(record)
        strangers = set(_ranks(record)) - attempt.ranks if attempt.ranks else ()
        if strangers:
            raise ValueError(f"names rank {min(strangers)}, which takes no part in the attempt")
    for values in lists:
        if values:
            _compare("workers", len(values), attempt.world)


def _compare(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"is of {found:,} {what}, and the attempt has {expected:,}")


def _lists(record: Record) -> Iterable[Sized]:
    if isinstance(record, FactsRecord):
        return record.differ.values()
    if isinstance(record, StreamsRecord):
        return record.same.values()
    if isinstance(record, ReplicasRecord):
        return record.weights_W, record.distance_W
    return (record.drawn_W, record.distinct_W, record.repeated_W) if isinstance(record, CoverageRecord) else ()


def _ranks(record: Record) -> Iterable[int]:
    if isinstance(record, NoteRecord | DecisionRecord):
        return [rank for rank in record.ranks if rank is not None]
    return (record.rank,) if isinstance(record, BatchRecord | ValidationRecord | DepartureRecord) else ()
