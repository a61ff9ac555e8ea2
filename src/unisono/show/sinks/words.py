"""Findings in words, for places that show text."""

from __future__ import annotations

from unisono.common.terminal import plain
from unisono.records.finding import Finding
from unisono.show.text.findings import block, likely, spoken_ranks, spoken_steps

WIDTH = 100


def headline(finding: Finding) -> str:
    """`UN101 Several workers load the same data`."""
    return plain(f"{finding.code} {finding.title}")


def sentence(finding: Finding) -> str:
    """What, how grave, who, since when and why, in one line."""
    return plain(f"{finding.title}, {circumstances(finding)}")


def circumstances(finding: Finding) -> str:
    """The same without what."""
    where = ", ".join(part for part in (finding.severity, spoken_ranks(finding), spoken_steps(finding)) if part)
    return plain(f"{where}: {likely(finding)}")


def lines(finding: Finding) -> list[str]:
    """As the terminal shows it: what, why, and what to do next."""
    return block(finding, WIDTH)
