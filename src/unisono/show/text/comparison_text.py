"""A comparison as a terminal shows it: the verdict, what became of each finding, the numbers, the settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from unisono.common.terminal import cut, lines_of, plain, table
from unisono.show.analysis.checkup import count
from unisono.show.analysis.comparison import NAMES, Comparison
from unisono.show.analysis.finding_changes import (
    AGAIN,
    GONE,
    MILDER,
    MOVED,
    NEW,
    SEEN_NOW,
    STILL,
    UNTOLD,
    FindingChange,
)
from unisono.show.analysis.run_settings import Setting
from unisono.show.text.findings import INDENT, Paint, asides, headline, likely, painter
from unisono.show.text.scaling_text import lost_as_text
from unisono.show.text.side_by_side import BARS, columns

STYLES = {"healthy": "healthy", "fixed": "healthy", "not-fixed": "critical", "new-fault": "critical"}
"""All other verdicts are warnings."""

HEADINGS = {
    "still there": (STILL, MOVED),
    "came again, and was resolved": (AGAIN,),
    "only information now": (MILDER,),
    "cannot be told": (UNTOLD,),
    "new": (NEW,),
    "seen only now": (SEEN_NOW,),
    "gone": (GONE,),
}
LABEL = 24
NAME_SHOWN = 40
MILLISECONDS_BELOW = 1.0


def as_text(comparison: Comparison, width: int = 80, colour: bool = False) -> str:
    paint = painter(colour)
    parts = [
        [
            paint(line, STYLES.get(comparison.verdict, "warning"))
            for line in lines_of(plain(comparison.verdict_text), width)
        ],
        _runs(comparison, width),
        [line for caution in comparison.cautions for line in _wrapped(f"with care: {caution}", width)],
        *_findings(comparison.changes, width, paint),
        _information(comparison, width),
        _curves(comparison, width, paint),
        _before_and_after(comparison, width),
        _lost(comparison, width, paint),
        _settings(comparison.settings, width, paint),
        _further(comparison),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _runs(comparison: Comparison, width: int) -> list[str]:
    lines = []
    for name, checkup in zip(NAMES, (comparison.first, comparison.second), strict=True):
        told = f"{cut(checkup.run, NAME_SHOWN)}: {checkup.verdict_text}"
        lines += lines_of(plain(told), width, first=f"{name:<8}", rest=" " * 8)
        lines += [line for aside in asides(checkup) for line in _wrapped(aside, width, " " * 8)]
    return lines


def _findings(changes: Sequence[FindingChange], width: int, paint: Paint) -> Iterable[list[str]]:
    for heading, statuses in HEADINGS.items():
        group = [change for change in changes if change.status in statuses]
        if group:
            yield [paint(heading, "label"), *(line for change in group for line in _finding(change, width, paint))]


def _finding(change: FindingChange, width: int, paint: Paint) -> list[str]:
    remarks = list(change.remarks)
    if change.checked_steps is not None:
        remarks.append(f"checked over {count(change.checked_steps, 'step')} of the second run")
    if change.second is not None and change.status != MILDER:
        remarks.append(likely(change.second))
    lines = headline(change.newest, width, paint)
    return lines + [line for remark in remarks for line in _wrapped(remark, width, INDENT)]


def _information(comparison: Comparison, width: int) -> list[str]:
    """Findings that are no faults are only named."""
    told = []
    for name, checkup in zip(NAMES, (comparison.first, comparison.second), strict=True):
        codes = [finding.code for finding in checkup.findings if not finding.at_least("warning")]
        told += [f"{', '.join(codes)} in the {name} run"] if codes else []
    return _wrapped(f"only information: {'; '.join(told)}", width) if told else []


def _curves(comparison: Comparison, width: int, paint: Paint) -> list[str]:
    if not any(values for curves in comparison.curves for values in curves.values()):
        return []
    steps = comparison.common_steps
    over = (
        f"steps {steps[0]:,} to {steps[-1]:,}, which both have" if steps else "all steps: the runs have none in common"
    )
    bars = max(0, min(BARS, (width - LABEL) // 2 - 10))
    heading, *rows = columns(dict(zip(NAMES, comparison.curves, strict=True)), bars).splitlines()
    about = lines_of(f"{over}; the numbers are means over the last half", width)
    return [*about, paint(heading, "label"), *rows]


def _before_and_after(comparison: Comparison, width: int) -> list[str]:
    workers, seconds = comparison.effective_workers, comparison.seconds_per_step
    runs = zip((workers.first, workers.second), (comparison.first, comparison.second), strict=True)
    effective = ["" if value is None else f"{value:.3g} of {run.workers}" for value, run in runs]
    return [
        *_labelled("effective workers", effective, workers.ratio, width),
        *_labelled("time per step", [_time(seconds.first), _time(seconds.second)], seconds.ratio, width),
    ]


def _labelled(label: str, values: Sequence[str], ratio: float | None, width: int) -> list[str]:
    """Nothing where neither is known."""
    if not any(values):
        return []
    first, second = (value or "not known" for value in values)
    ending = "" if first == second or ratio is None else f": {ratio:.3g} times"
    return lines_of(f"{first} before, {second} now{ending}", width, first=f"{label:<{LABEL}}", rest=" " * LABEL)


def _lost(comparison: Comparison, width: int, paint: Paint) -> list[str]:
    lines = []
    for name, losses in zip(NAMES, comparison.lost, strict=True):
        if losses:
            heading = f"time of all workers in steps with a finding, {name} run"
            lines += [paint(line, "label") for line in lines_of(heading, width)]
            lines += lost_as_text(losses, width).splitlines()
    return lines


def _settings(settings: Sequence[Setting], width: int, paint: Paint) -> list[str]:
    if not settings:
        return []
    rows = [("the runs differ in", *NAMES), *((f"  {plain(one.name)}", *_values(one)) for one in settings)]
    longest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    values = [min(length, (width - 4) // 3) for length in longest[1:]]
    name = min(longest[0], width - 4 - sum(values))
    widths = [name, values[0], width - 4 - name - values[0]]
    head, *lines = table(rows, "<<<", widths)
    return [paint(head, "label"), *lines]


def _values(setting: Setting) -> tuple[str, str]:
    """Of lists like `betas=0.9 eps=1e-08` only what differs: they are long, and mostly equal."""
    first, second = plain(setting.first).split(" "), plain(setting.second).split(" ")
    if not all("=" in part for part in [*first, *second]):
        return " ".join(first), " ".join(second)
    only_first, only_second = (
        [part for part in one if part not in other] for one, other in ((first, second), (second, first))
    )
    return " ".join(only_first) or "-", " ".join(only_second) or "-"


def _further(comparison: Comparison) -> list[str]:
    codes = [change.code for change in comparison.changes if change.status not in (GONE, MILDER)]
    return [f"more: unisono explain {plain(codes[0])}"] if codes else []


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return lines_of(plain(text), width, first=indent, rest=indent + "  ")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.3g} s" if seconds >= MILLISECONDS_BELOW else f"{1000 * seconds:.3g} ms"
