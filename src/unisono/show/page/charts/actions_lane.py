"""What the guard did, and when: marks over the steps that all charts share, and a bar where steps were undone."""

from __future__ import annotations

from bokeh.models import FactorRange, Range1d
from bokeh.plotting import figure

from unisono.common.terminal import plain
from unisono.records import DecisionRecord
from unisono.records.decision_text import DONE, actions_of, done_in_words
from unisono.show.page.charts.chart import ACTION, Chart, Columns, Sources, hover, time_figure
from unisono.show.page.page_model import PageModel

ACTS, UNDONE = "acts", "undone"
"""Sources that all time lines share: a line at each act, and the steps that were rolled back."""

LONGEST_REASON = 160
SHORT = {"reset-momentum": "reset"}
"""Rows with longer names would not leave all charts the same margin."""

OTHER = "other"
"""What only a newer version knows."""

ROWS = (*(SHORT.get(action, action) for action in DONE), OTHER)


class ActionsLane(Chart):
    name = "actions"
    heading = "What the guard did"

    def is_there(self, page_model: PageModel) -> bool:
        return bool(page_model.acts)

    def data(self, page_model: PageModel) -> dict[str, Columns]:
        pairs = [(act, row) for act in page_model.acts for row in _rows(act)]
        acts = [act for act, _ in pairs]
        columns = {
            "row": [row for _, row in pairs],
            "step": [act.step for act in acts],
            "fill": [0.0 if act.dry else 1.0 for act in acts],
            "what": [done_in_words(act) for act in acts],
            "why": [_short(act.reason) for act in acts],
            "id": [_short(act.id) for act in acts],
        }
        return {self.name: columns, **shared_columns(page_model)}

    def look(self, page_model: PageModel) -> tuple[str, ...]:
        return tuple(row for row in ROWS if any(row in _rows(act) for act in page_model.acts))

    def draw(self, page_model: PageModel, sources: Sources, steps: Range1d) -> figure:
        rows = FactorRange(*reversed(self.look(page_model)))
        plot = time_figure(self.name, steps, 60 + 24 * len(rows.factors), y_range=rows)
        bar = {"fill_color": ACTION, "fill_alpha": 0.35, "line_color": None, "height": 0.5}
        plot.hbar(y="row", left="left", right="right", source=sources[UNDONE], **bar)
        style = {"size": 11, "fill_color": ACTION, "line_color": ACTION, "fill_alpha": "fill", "marker": "diamond"}
        marks = plot.scatter("step", "row", source=sources[self.name], **style)
        told = [("step", "@step{0,0}"), ("", "@what"), ("why", "@why"), ("decision", "@id")]
        plot.add_tools(hover(told, renderers=[marks]))
        plot.ygrid.visible = False
        return plot

    def caption(self, page_model: PageModel) -> str:
        hollow = " Hollow: it would have acted, and did not." if any(act.dry for act in page_model.acts) else ""
        undone = " Bar: steps that were rolled back." if shared_columns(page_model)[UNDONE]["left"] else ""
        return f"The guard {page_model.decision_counts.words()}.{hollow}{undone}"


def shared_columns(page_model: PageModel) -> dict[str, Columns]:
    done = [act for act in page_model.acts if not act.dry]
    undone = [(act.step, act.to_step) for act in done if act.to_step is not None]
    return {
        ACTS: {"step": [act.step for act in done]},
        UNDONE: {
            "left": [to_step + 0.5 for _, to_step in undone],
            "right": [step + 0.5 for step, _ in undone],
            "row": ["roll-back"] * len(undone),
        },
    }


def mark_acts(plot: figure, sources: Sources) -> None:
    """Behind the lines of a chart with an axis of its own."""
    strip = {"fill_color": ACTION, "fill_alpha": 0.15, "line_color": None, "level": "underlay"}
    plot.vstrip("left", "right", source=sources[UNDONE], **strip)
    line = {"line_color": ACTION, "line_alpha": 0.8, "line_dash": "dotted", "line_width": 1.5, "level": "underlay"}
    plot.vspan("step", source=sources[ACTS], **line)


def caption_of_marks(page_model: PageModel) -> str:
    marks = shared_columns(page_model)
    lines = " Dotted upright lines: the guard acted." if marks[ACTS]["step"] else ""
    return lines + (" Shaded: steps that were rolled back." if marks[UNDONE]["left"] else "")


def _rows(act: DecisionRecord) -> list[str]:
    return [SHORT.get(action, action) if action in DONE else OTHER for action in actions_of(act)]


def _short(text: str) -> str:
    text = plain(text)
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"
