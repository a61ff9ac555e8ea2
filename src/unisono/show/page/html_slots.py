"""The page's HTML in pieces: those that are filled anew whenever there is news, and the frames of the charts."""

from __future__ import annotations

from unisono.show.page.chart_list import LAYERS, NOISE, PAIRS, RANK_MAPS, TIME_LINES
from unisono.show.page.charts.chart import Chart
from unisono.show.page.findings_section import findings, headlines, verdict
from unisono.show.page.html import Html, details, table, text
from unisono.show.page.page_model import PageModel
from unisono.show.page.run_section import actions, facts, scaling

SECTIONS = {"time-lines": TIME_LINES, "rank-maps": RANK_MAPS, "pairs": PAIRS, "layers": LAYERS, "noise": NOISE}


def words(page_model: PageModel) -> dict[str, Html]:
    """By the id of the element that they fill."""
    parts = {
        "verdict": verdict,
        "headlines": headlines,
        "findings": findings,
        "scaling": scaling,
        "actions": actions,
        "facts": facts,
    }
    return {f"slot-{name}": part(page_model) for name, part in parts.items()}


def frames(page_model: PageModel) -> dict[str, Html]:
    """The figures of each section, still without their charts."""
    return {
        f"slot-{name}": "".join(_frame(chart, page_model) for chart in charts if chart.is_there(page_model))
        for name, charts in SECTIONS.items()
    }


def captions(page_model: PageModel) -> dict[str, Html]:
    shown = [chart for charts in SECTIONS.values() for chart in charts if chart.is_there(page_model)]
    return {f"caption-{chart.name}": _caption(chart, page_model) for chart in shown}


def _frame(chart: Chart, page_model: PageModel) -> Html:
    label = text(f"{chart.role}: {chart.heading}. Described below it.")
    return (
        f'<figure id="figure-{chart.name}"><h3>{text(chart.heading)}</h3>{_key(chart, page_model)}'
        f'<div class="chart" id="chart-{chart.name}" role="img" aria-label="{label}"></div>'
        f'<figcaption id="caption-{chart.name}">{_caption(chart, page_model)}</figcaption></figure>'
    )


def _caption(chart: Chart, page_model: PageModel) -> Html:
    rows = chart.table(page_model)
    numbers = details(rows.title, table(rows.head, rows.rows, chart.heading)) if rows is not None else ""
    return f"<p>{text(chart.caption(page_model))}</p>{numbers}"


def _key(chart: Chart, page_model: PageModel) -> Html:
    """The colours; not of use to those who cannot see the chart."""
    key = chart.key(page_model)
    if key is None:
        return ""
    colours = '<i class="less"></i>' if key.less_is_orange else '<i class="more"></i>'
    ends = f"<span>{text(key.low)}</span>{colours}<span>{text(key.high)}</span>"
    return f'<div class="key" aria-hidden="true">{ends}</div>'
