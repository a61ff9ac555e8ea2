"""A case of the manuals: a training job that shows their pattern, and a healthy one that looks like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LOOK_ALIKE = "look-alike"


@dataclass(frozen=True)
class ManualCase:
    slug: str
    code: str
    pattern: str
    """The manual's name of the pattern, as in the rule's `pattern`."""

    workers: int
    train: Callable[[int], None]
    """On each rank, given a seed: builds, wraps, trains with plain torch. The process group is there."""

    look_alike: Callable[[int], None]
    """Healthy training that looks like it."""

    cause: str = ""
    """Slug of the cause that should come first, where one is right."""

    severity: str = "warning"
    """The least grave word that is right."""

    threshold: str = ""
    """The manual's own rule for it, by its name in the detection benchmark; empty where the manual gives no number."""


@dataclass(frozen=True)
class CaseOrder:
    """One job to run."""

    case: ManualCase
    seed: int
    look_alike: bool = False

    def __str__(self) -> str:
        return f"{self.case.slug}:{self.seed}" + (f":{LOOK_ALIKE}" if self.look_alike else "")

    def train(self) -> None:
        (self.case.look_alike if self.look_alike else self.case.train)(self.seed)
