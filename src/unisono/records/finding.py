"""What diagnosis finds: one fault in plain words, with ranks, evidence, causes and remedies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Cause:
    slug: str
    text: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    slug: str
    title: str
    severity: str
    state: str
    """`open`, or `resolved` when the same checks have passed again since."""

    first_step: int
    last_step: int
    ranks: tuple[int, ...]
    """The ranks at fault; for duplicated data all that share it; empty: all of them, or not attributable."""

    where: tuple[str, ...]
    """Host and device of those ranks."""

    why: str
    """The evidence as a sentence."""

    evidence: Mapping[str, float | int | str]
    causes: tuple[Cause, ...]
    remedies: tuple[str, ...]
    pattern: str | None

    def as_dict(self) -> dict[str, Any]:
        """As `unisono diagnose --json` prints it."""
        content = asdict(self)
        content |= {name: list(content[name]) for name in ("ranks", "where", "causes", "remedies")}
        return content

    def at_least(self, severity: str) -> bool:
        return SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)
