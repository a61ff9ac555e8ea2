"""Findings as a terminal shows them: verdict, why, next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeAlias

from unisono.common.terminal import lines_of, plain, table
from unisono.records.decision_text import decision_line
from unisono.records.finding import Finding
from unisono.show.analysis.checkup import Checkup, count
from unisono.show.analysis.rank_differences import Difference, ranges
from unisono.show.text.manuals import manual_lines

Paint: TypeAlias = Callable[[str, str], str]
"""`(text, style) -> text`; a style is a verdict or `label`."""

COLOURS = {
    "healthy": "32",
    "info": "36",
    "warning": "33",
    "critical": "1;31",
    "broken": "1;31",
    "unheard": "33",
    "label": "2",
}
INDENT = " " * 7
LABEL = 6
REMEDIES_SHOWN = 3
PLACES_SHOWN = 4
VALUES_SHOWN = 8
ACTIONS_SHOWN = 12


def as_text(checkup: Checkup, width: int = 80, colour: bool = False) -> str:
    """The verdict, each finding, and where the workers differ."""
    paint = painter(colour)
    parts = [
        [paint(line, checkup.verdict) for line in lines_of(plain(checkup.verdict_text), width)],
        *_findings(checkup.findings, width, paint),
        _actions(checkup, width),
        _table(checkup.differences, width, paint),
        _manuals(checkup, width),
        _remarks(checkup, width),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def painter(colour: bool) -> Paint:
    return _coloured if colour else _uncoloured


def block(finding: Finding, width: int = 80, paint: Paint | None = None) -> list[str]:
    """One finding: what, on which ranks, since when; why; what to do next. Of an info only what and why."""
    paint = paint or _uncoloured
    lines = headline(finding, width, paint)
    for label, text in _rows(finding):
        body = lines_of(plain(text), width - len(INDENT) - LABEL) or [""]
        lines.append(INDENT + paint(f"{label:<{LABEL}}", "label") + body[0])
        lines += [INDENT + " " * LABEL + line for line in body[1:]]
    return lines


def headline(finding: Finding, width: int, paint: Paint) -> list[str]:
    """Code, title, ranks and steps: one line, or more where they do not fit."""
    code, title = plain(finding.code), plain(finding.title)
    right = "   ".join(part for part in (spoken_ranks(finding), spoken_steps(finding)) if part)
    left = paint(code, finding.severity) + f"  {title}"
    space = width - len(code) - 2 - len(title) - len(right)
    if space >= 3:
        return [left + " " * space + right]
    indented = lines_of(title, width - len(INDENT)) or [""]
    lines = [paint(code, finding.severity) + f"  {indented[0]}", *(INDENT + line for line in indented[1:])]
    return [*lines, *(INDENT + line for line in lines_of(right, width - len(INDENT)))]


def spoken_ranks(finding: Finding) -> str:
    """`rank 3`, `ranks 0-2, 5`; empty where nobody is named."""
    return f"rank{'s' * (len(finding.ranks) > 1)} {ranges(finding.ranks)}" if finding.ranks else ""


def spoken_steps(finding: Finding) -> str:
    if finding.state == "open":
        return f"since step {finding.first_step:,}"
    if finding.first_step == finding.last_step:
        return f"at step {finding.first_step:,}, resolved"
    return f"steps {finding.first_step:,} to {finding.last_step:,}, resolved"


def likely(finding: Finding) -> str:
    """The evidence, and the best cause where there is one."""
    cause = f"; most likely {finding.causes[0].text}" if finding.causes else ""
    return finding.why + cause


def action_lines(checkup: Checkup) -> list[str]:
    """What the guard did, the newest last; empty where it did nothing."""
    newest = list(checkup.decision_counts.newest)[-ACTIONS_SHOWN:]
    if not newest:
        return []
    earlier = checkup.decision_counts.decided - len(newest)
    cut = f", the last {len(newest)} of {checkup.decision_counts.decided:,} decisions" if earlier else ""
    return [f"what the guard did{cut}", *(f"  {decision_line(record)}" for record in newest)]


def asides(checkup: Checkup) -> list[str]:
    """What else a reader should know before believing the verdict."""
    told = []
    if checkup.muted:
        steps = (f"{code} since step {step:,}" for code, step in checkup.muted.items())
        told.append(f"found but ignored as asked: {', '.join(steps)}")
    if checkup.unreadable_lines:
        told.append(f"{count(checkup.unreadable_lines, 'line')} of the run file could not be read and were passed over")
    if checkup.further_models:
        told.append(f"models with a run of their own, to be diagnosed by themselves: {_few(checkup.further_models)}")
    return told + [f"a remark of {code}: {remark}" for code, remark in checkup.remarks.items()]


def _findings(findings: Iterable[Finding], width: int, paint: Paint) -> list[list[str]]:
    """In their order, under a heading where there are several kinds."""
    groups = [(kind, list(group)) for kind, group in groupby(findings, key=_kind)]
    parts = []
    for kind, group in groups:
        heading = [paint(kind, kind)] if len(groups) > 1 else []
        first, *others = (block(finding, width, paint) for finding in group)
        parts += [heading + first, *others]
    return parts


def _kind(finding: Finding) -> str:
    return finding.severity if finding.state == "open" else "resolved"


def _rows(finding: Finding) -> list[tuple[str, str]]:
    if finding.severity == "info":
        return [("why", likely(finding))]
    rows = [("why", likely(finding))]
    rows += [("next" if not nth else "or", text) for nth, text in enumerate(finding.remedies[:REMEDIES_SHOWN])]
    if 0 < len(finding.where) <= PLACES_SHOWN:
        rows.append(("where", ", ".join(dict.fromkeys(finding.where))))
    if "symptoms" in finding.evidence:
        rows.append(("also", f"seen, and probably caused by this: {finding.evidence['symptoms']}"))
    return rows


def _actions(checkup: Checkup, width: int) -> list[str]:
    return [line for told in action_lines(checkup) for line in lines_of(plain(told), width, rest="    ")]


def _manuals(checkup: Checkup, width: int) -> list[str]:
    if checkup.manuals is None:
        return []
    head, *told = manual_lines(checkup.manuals.crossings)
    return lines_of(head, width) + [line for one in told for line in lines_of(one, width, "  ", "    ")]


def _table(rows: tuple[Difference, ...], width: int, paint: Paint) -> list[str]:
    """Fact, value, ranks; a fact's further values stand below the first."""
    if not rows:
        return []
    cells = [("", "value", "ranks"), *(cell for row in rows for cell in _cells(row))]
    fact_width = min(max(len(fact) for fact, _, _ in cells), 30)
    value_width = min(max(len(value) for _, value, _ in cells), max(12, width - fact_width - 20))
    widest = max(len(ranks) for _, _, ranks in cells)
    head, *lines = (f"  {line}" for line in table(cells, "<<<", [fact_width, value_width, widest]))
    return ["the workers differ in", paint(head, "label"), *lines]


def _cells(row: Difference) -> list[tuple[str, str, str]]:
    cells = [("", plain(value), ranks) for value, ranks in row.values[:VALUES_SHOWN]]
    cells[0] = (plain(f"{row.topic}: {row.fact}"), *cells[0][1:])
    more = len(row.values) - VALUES_SHOWN
    return [*cells, ("", f"and {more} more values", "")] if more > 0 else cells


def _remarks(checkup: Checkup, width: int) -> list[str]:
    lines = [line for text in asides(checkup) for line in lines_of(plain(text), width, rest="  ")]
    hint = [f"more: unisono explain {plain(checkup.findings[0].code)}"] if checkup.findings else []
    return lines + hint


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _uncoloured(text: str, _style: str) -> str:
    return text


def _coloured(text: str, style: str) -> str:
    word, code = text.strip(), COLOURS.get(style)
    return text.replace(word, f"\x1b[{code}m{word}\x1b[0m", 1) if code else text
