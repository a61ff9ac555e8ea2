"""Findings for pasting into an issue."""

from __future__ import annotations

import re

from unisono.common.terminal import plain
from unisono.records.finding import Finding
from unisono.show.analysis.checkup import Checkup
from unisono.show.analysis.rank_differences import Difference
from unisono.show.text.findings import action_lines, asides, likely, spoken_ranks, spoken_steps
from unisono.show.text.manuals import manual_lines

LINKED = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)|(?<=#)(?=[0-9])", re.IGNORECASE)
"""Where `http://host`, `www.host`, `name@host`, `@name` and `#1` are cut in two."""


def as_markdown(checkup: Checkup) -> str:
    parts = [
        f"### unisono: {escaped(checkup.verdict_text)}",
        f"Run {escaped(checkup.run)}, {checkup.steps:,} steps, {checkup.workers:,} workers.",
        *(_finding(finding) for finding in checkup.findings),
        _actions(checkup),
        _table(checkup.differences),
        _manuals(checkup),
        *(f"{escaped(text)}." for text in asides(checkup)),
    ]
    return "\n\n".join(part for part in parts if part)


def escaped(text: str) -> str:
    """Shown as it is: nothing in it marks up, links or mentions.

    GitHub makes links of addresses, names behind `@` and numbers behind `#` also where they are escaped; not across a
    comment, which nobody sees.
    """
    return LINKED.sub("<!-- -->", without_markup(text))


def without_markup(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~#])", r"\\\1", plain(text))


def with_code(text: str) -> str:
    """Our own texts may mark code."""
    return "".join(part if part.startswith("`") else escaped(part) for part in re.split(r"(`[^`]+`)", text))


def _finding(finding: Finding) -> str:
    extent = ", ".join(part for part in (spoken_ranks(finding), spoken_steps(finding)) if part)
    lines = [f"**{escaped(finding.code)} {escaped(finding.title)}** ({finding.severity}; {extent})", ""]
    lines += [f"- why: {escaped(likely(finding))}"]
    lines += [f"- {'next' if not nth else 'or'}: {with_code(text)}" for nth, text in enumerate(finding.remedies)]
    lines += [f"- where: {escaped(', '.join(dict.fromkeys(finding.where)))}"] if finding.where else []
    lines += [f"- evidence: {escaped(_evidence(finding))}"] if finding.evidence else []
    return "\n".join(lines)


def _evidence(finding: Finding) -> str:
    numbers = (
        (name, f"{value:.6g}" if isinstance(value, float) else value) for name, value in finding.evidence.items()
    )
    return ", ".join(f"{name} {value}" for name, value in numbers)


def _actions(checkup: Checkup) -> str:
    head, *lines = action_lines(checkup) or [""]
    return "\n".join([head.capitalize(), "", *(f"- {escaped(line.strip())}" for line in lines)]) if lines else ""


def _manuals(checkup: Checkup) -> str:
    if checkup.manuals is None:
        return ""
    head, *told = manual_lines(checkup.manuals.crossings)
    return "\n".join([head[0].upper() + head[1:], "", *(f"- {escaped(line)}" for line in told)])


def _table(rows: tuple[Difference, ...]) -> str:
    if not rows:
        return ""
    cells = [
        f"| {escaped(row.topic)}: {escaped(row.fact)} | {escaped(value)} | {ranks} |"
        for row in rows
        for value, ranks in row.values
    ]
    return "\n".join(["The workers differ in", "", "| fact | value | ranks |", "|---|---|---|", *cells])
