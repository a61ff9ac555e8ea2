"""Two runs on one page: did the fix work?"""

from __future__ import annotations

from bokeh.models import Range1d

from unisono.show.analysis.checkup import count
from unisono.show.analysis.comparison import Comparison, Pair
from unisono.show.analysis.finding_changes import FindingChange
from unisono.show.page.charts.overlay import Overlay
from unisono.show.page.drawing import as_items
from unisono.show.page.findings_section import sentence
from unisono.show.page.html import Html, code_in, details, table, text
from unisono.show.page.page_shell import filled, self_contained
from unisono.show.page.timeline import Timeline
from unisono.show.text.comparison_text import HEADINGS, STYLES
from unisono.show.text.findings import likely, spoken_ranks, spoken_steps
from unisono.show.text.side_by_side import ROWS

MEASURES = {
    "loss": "Loss",
    "loss_std": "Loss dispersion",
    "norm": "Gradient norm",
    "norm_cv": "Norm dispersion",
    "cos": "Direction consistency",
    "effective_workers": "Effective workers",
    "seconds": "Time per step, in seconds",
}


def render_comparison(comparison: Comparison, first: Timeline, second: Timeline) -> Html:
    overlays = [Overlay(name, heading, first.line(name), second.line(name)) for name, heading in MEASURES.items()]
    overlays = [one for one in overlays if not (one.first.is_empty and one.second.is_empty)]
    start, end = _extent(first, second)
    steps = Range1d(start, end, name="steps")
    drawn = as_items({one.name: one.draw(steps) for one in overlays}) | {
        "structure": "comparison",
        "steps": [start, end],
    }
    slots = {
        "verdict": _verdict(comparison),
        "findings": _findings(comparison),
        "numbers": _numbers(comparison),
        "time-lines": "".join(map(_figure, overlays)),
        "settings": _settings(comparison),
    }
    return self_contained(
        f"{comparison.first.run} and {comparison.second.run}", filled("comparison.html", slots), drawn
    )


def _extent(first: Timeline, second: Timeline) -> tuple[float, float]:
    known = [timeline for timeline in (first, second) if timeline.first_step is not None]
    start = min((timeline.first_step or 0 for timeline in known), default=0)
    return start - 0.5, max((timeline.last_step for timeline in known), default=start + 1) + 0.5


def _verdict(comparison: Comparison) -> Html:
    style = STYLES.get(comparison.verdict, "warning")
    cautions = "".join(f"<p>With care: {text(caution)}</p>" for caution in comparison.cautions)
    said = text(sentence(comparison.verdict_text))
    return f'<div class="verdict {style}"><p class="large">{said}</p>{cautions}</div>'


def _findings(comparison: Comparison) -> Html:
    parts = []
    for heading, statuses in HEADINGS.items():
        group = [change for change in comparison.changes if change.status in statuses]
        if group:
            parts.append(f"<h3>{text(sentence(heading)[:-1])}</h3>" + "".join(map(_change, group)))
    return "".join(parts) or "<p>Nothing was found in either run.</p>"


def _change(change: FindingChange) -> Html:
    finding = change.newest
    remarks = list(change.remarks)
    if change.checked_steps is not None:
        remarks.append(f"checked over {count(change.checked_steps, 'step')} of the second run")
    if change.second is not None:
        remarks.append(likely(change.second))
    remarked = "".join(f"<p>{code_in(sentence(remark))}</p>" for remark in remarks)
    facts = ", ".join(filter(None, [finding.severity, spoken_ranks(finding), spoken_steps(finding)]))
    state = "resolved" if change.second is None else finding.state
    return (
        f'<article class="finding {text(finding.severity)} {text(state)}">'
        f"<h3>{text(finding.code)} <span>{text(finding.title)}</span></h3>"
        f'<p class="meta">{text(facts)}</p>{remarked}</article>'
    )


def _numbers(comparison: Comparison) -> Html:
    rows = [[title, *_cells(comparison.pair(field))] for title, field in ROWS.items()]
    rows.append(["time per step (s)", *_cells(comparison.seconds_per_step)])
    counts = ("first run", f"{comparison.first.steps:,}"), ("second run", f"{comparison.second.steps:,}")
    steps = comparison.common_steps
    over = f"over the last half of steps {steps[0]:,} to {steps[-1]:,}" if steps else "over the last half of each run"
    told = "; ".join(f"{name}: {number} steps" for name, number in counts)
    return table(("", "first", "second", "ratio"), rows, f"Means {over}. {told}.")


def _cells(pair: Pair) -> list[str]:
    return ["-" if value is None else f"{value:.3g}" for value in (pair.first, pair.second, pair.ratio)]


def _settings(comparison: Comparison) -> Html:
    rows = [[one.name, one.first, one.second] for one in comparison.settings]
    return table(("", "first", "second"), rows, "Where the runs differ") if rows else "<p>The same in both runs.</p>"


def _figure(overlay: Overlay) -> Html:
    numbers = overlay.table()
    label = text(f"time lines: {overlay.heading} of both runs. Described below it.")
    return (
        f'<figure id="figure-{overlay.name}"><h3>{text(overlay.heading)}</h3>'
        f'<div class="chart" id="chart-{overlay.name}" role="img" aria-label="{label}"></div>'
        f"<figcaption><p>{text(overlay.caption())}</p>"
        f"{details(numbers.title, table(numbers.head, numbers.rows, overlay.heading))}</figcaption></figure>"
    )
