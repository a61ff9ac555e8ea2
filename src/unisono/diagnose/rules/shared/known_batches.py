"""Whether the workers' batches are known, and new."""

from __future__ import annotations

from unisono.records import StepRecord


def new_batches(record: StepRecord) -> bool:
    """Whether the workers' batches can be compared: somebody who repeats one batch differs from the others for ever.

    Unknown batches count as new, except between two workers, where nothing else could tell.
    """
    return record.fresh if batches_known(record) else len(record.loss_W or record.norm_W) > 2


def batches_known(record: StepRecord) -> bool:
    return bool(record.compared or record.indexed)
