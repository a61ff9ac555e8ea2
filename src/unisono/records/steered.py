"""What steering did at a step, from its record. W = workers."""

from __future__ import annotations

from collections.abc import Collection

from unisono.records.run import StepRecord


def left_out(record: StepRecord) -> tuple[int, ...] | None:
    """The workers with weight zero; `None` without steering, at a skipped step, and where it was not noted down."""
    if not record.kept_workers:
        return None
    if record.weight_W:
        return tuple(worker for worker, weight in enumerate(record.weight_W) if weight == 0)
    return () if record.kept_workers >= len(record.finite_W) else None


def are_left_out(record: StepRecord, workers: Collection[int]) -> bool:
    """Whether steering kept these out of the update. Where only the number of the kept is known, that decides."""
    found = left_out(record)
    if found is not None:
        return set(workers) <= set(found)
    kept = record.kept_workers or 0
    return 0 < kept <= len(record.finite_W) - len(workers)
