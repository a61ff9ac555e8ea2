"""The norm of the averaged gradient at every step at which it is known, heard or not."""

from __future__ import annotations

import math
from dataclasses import replace

from unisono.records.run import StepRecord

SAME = 0.02
"""Relative difference up to which two norms are of the same gradient; those of bfloat16 are no closer."""


class GlobalNorm:
    """Where a step is not heard, what the script's own `clip_grad_norm_` returned is the same number, for nothing.

    Unless it clips something else: some of the parameters, by another norm, or with the loss scale still in. At steps
    that are heard the two are compared, and the last comparison counts.
    """

    def __init__(self) -> None:
        self._clips_something_else = False

    def of(self, record: StepRecord) -> float | None:
        own, clipped = record.grad_norm, record.clip_norm
        if own is not None and clipped is not None and math.isfinite(own) and math.isfinite(clipped):
            self._clips_something_else = not math.isclose(own, clipped, rel_tol=SAME)
        if own is not None:
            return own
        # What steering made of the gradients is not their average.
        steered = record.kept_workers is not None
        return None if self._clips_something_else or steered or record.skipped else clipped

    def filled_in(self, record: StepRecord) -> StepRecord:
        norm = self.of(record)
        return record if norm is record.grad_norm else replace(record, grad_norm=norm)
