"""What one rank has taken at a step, as it leaves the training thread: exact evidence, not yet hashed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from unisono.listen.evidence.batch_tracker import Pull
from unisono.listen.evidence.rng_streams import Snapshot

Print = int | Tensor


@dataclass(slots=True)
class RawEvidence:
    backwards: int = 1
    syncs: int = 1
    passes: int = 0
    updates: int = 0
    lr: float | None = None
    settings: int | None = None
    part: int = 0
    parts: int = 0
    reduced: Print | None = None
    used: Print | None = None
    weights: dict[str, Print] = field(default_factory=dict)
    weight_square: float | Tensor | None = None
    state: Print | None = None
    buffers: Print | None = None
    start: Print | None = None
    """All weights before the first backward pass of the step."""

    batches: list[Pull] = field(default_factory=list)
    evaluated: list[Pull] = field(default_factory=list)
    streams: dict[str, tuple[Snapshot, Snapshot]] = field(default_factory=dict)
    """Random streams before and after, by where they were drawn from."""

    initial: Print | None = None
    """The same before the first step of all."""

    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    """By topic."""

    projections: dict[str, Any] = field(default_factory=dict)

    def prints(self) -> Iterator[Print | None]:
        yield from (self.reduced, self.used, self.state, self.buffers, self.start, self.initial)
        yield from self.weights.values()
