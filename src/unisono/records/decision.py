"""What the guard has done to the training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from unisono.records.run import Ints


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """Something the guard has done, or would have done, on all workers."""

    kind: ClassVar[str] = "decision"
    attempt: int
    step: int
    time: float
    id: str
    """Attempt, step and the decision's number in the attempt: `1-812-3`."""

    action: str
    """`skip`, `clip`, `reset-momentum`, `resync`, `roll-back`, `halt`, `reseed`, `callback`; several joined by `, `."""

    reason: str
    row: str = ""
    """The policy's row that asked for it."""

    ranks: Ints = ()
    """The launcher's numbers of those concerned; empty: all, or not known."""

    evidence: Mapping[str, float] = field(default_factory=dict)
    dry: bool = False
    """Only decided: nothing was done."""

    to_step: int | None = None
    """Roll-back: the step of the checkpoint."""

    outcome: str = ""
    """What came of it, in words, where there is something to tell."""

    digest: str = ""
    """Of all decisions up to this one: the same on every rank."""
