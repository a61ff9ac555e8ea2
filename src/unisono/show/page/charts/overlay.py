"""One measure of two runs over the same steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from unisono.show.page.charts.chart import BLUE, ORANGE, Table, hover, spoken, time_figure
from unisono.show.page.charts.line_chart import HEIGHT, WIDE
from unisono.show.page.lines import Line
from unisono.show.page.stretches import Array

MEASURES: dict[str, Callable[[Array], float]] = {
    "at first": lambda mean_T: mean_T[0],
    "at last": lambda mean_T: mean_T[-1],
    "smallest": np.min,
    "largest": np.max,
}


class Overlay(NamedTuple):
    name: str
    heading: str
    first: Line
    second: Line

    def draw(self, steps: Range1d) -> figure:
        plot = time_figure(self.name, steps, HEIGHT, y_axis_type="log" if self._logarithmic() else "linear")
        looks = ((self.first, ORANGE, "dashed", "first"), (self.second, BLUE, "solid", "second"))
        for line, colour, dash, which in looks:
            source = ColumnDataSource({"x": line.step_T, "mean": line.mean_T})
            drawn = plot.line("x", "mean", source=source, line_color=colour, line_width=2, line_dash=dash)
            rows = [(f"{which} run, step", "@x{0,0}"), (self.heading, "@mean{%.4g}")]
            plot.add_tools(hover(rows, mode="vline", renderers=[drawn]))
        return plot

    def caption(self) -> str:
        return f"First run: {_course(self.first)}. Second run: {_course(self.second)}."

    def table(self) -> Table:
        rows = [[name, _told(self.first, take), _told(self.second, take)] for name, take in MEASURES.items()]
        return Table(("", "first run", "second run"), rows)

    def _logarithmic(self) -> bool:
        values = np.concatenate([self.first.finite().mean_T, self.second.finite().mean_T])
        return bool(values.min() > 0 and values.max() > WIDE * values.min())


def _told(line: Line, take: Callable[[Array], float]) -> str:
    return "-" if line.is_empty else spoken(take(line.finite().mean_T))


def _course(line: Line) -> str:
    mean_T = line.finite().mean_T
    return "not known" if line.is_empty else f"from {spoken(mean_T[0])} to {spoken(mean_T[-1])}"
