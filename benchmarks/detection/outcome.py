"""What came of one run of the detection benchmark, and how it is told right from wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unisono.lab.faults.catalogue import FAULTS
from unisono.records.finding import Finding


@dataclass(frozen=True)
class Told:
    """A finding above info, when it was first told."""

    code: str
    severity: str
    cause: str
    ranks: tuple[int, ...]
    step: int
    readings: int
    """Since the fault began; since the start where there is none."""

    steps: int
    """The same, in steps."""


@dataclass(frozen=True)
class Outcome:
    fault: str
    """Empty: nothing was injected."""

    setting: str
    workers: int
    schedule: str
    fired: int
    victim: int
    told: tuple[Told, ...]
    """After the fault began."""

    early: tuple[Told, ...] = ()
    """Before it began: false alarms."""

    healthy_steps: int = 0
    final_ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Ranks of each finding above info at the end, by code."""

    manuals: Mapping[str, int] = field(default_factory=dict)
    """Healthy steps at which a threshold of the manuals would have alarmed."""

    real: bool = False

    @property
    def expected_ranks(self) -> tuple[int, ...]:
        """Of two workers, who only differ from each other, nobody can be named."""
        fault = FAULTS[self.fault]
        return () if self.workers == 2 and fault.undecidable else fault.named(self.victim, self.workers)

    @property
    def found(self) -> Told | None:
        """The first finding that names the fault."""
        return next((told for told in self.told if FAULTS[self.fault].accepts(told.code)), None)

    @property
    def right_ranks(self) -> bool:
        found = self.found
        return found is not None and self.final_ranks.get(found.code) == self.expected_ranks

    @property
    def right_cause(self) -> bool:
        return self.found is not None and FAULTS[self.fault].is_cause(self.found.code, self.found.cause)

    @property
    def wrong_rank(self) -> bool:
        """Somebody was accused who did nothing."""
        allowed = set(self.expected_ranks) if self.fault else set()
        said = [told.ranks for told in self.told] + list(self.final_ranks.values())
        return any(set(ranks) - allowed for ranks in said)


def told(finding: Finding, step: int, readings: int, since: int = 0) -> Told:
    """
    :param since: First step of the fault.
    """
    cause = finding.causes[0].slug
    return Told(finding.code, finding.severity, cause, finding.ranks, step, readings, step - since + 1)
