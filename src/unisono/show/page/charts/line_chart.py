"""One measure over the steps: a line, the band of the workers around it, and where there is one what was expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from bokeh.models import Range1d
from bokeh.plotting import figure

from unisono.show.analysis.checkup import count
from unisono.show.page.charts.actions_lane import caption_of_marks, mark_acts, shared_columns
from unisono.show.page.charts.chart import BLUE, ORANGE, Chart, Columns, Sources, Table, hover, spoken, time_figure
from unisono.show.page.lines import Line
from unisono.show.page.page_model import PageModel

HEIGHT = 190
WIDE = 50.0
"""Where the line spans this ratio, or a spike rises so far above it, positive values have a logarithmic axis."""

ROWS = 12


@dataclass(frozen=True)
class LineChart(Chart):
    name: str
    heading: str
    says: str
    expected: str | None = None
    unit: str = ""
    line_is: str = "mean"
    may_be_logarithmic: bool = True
    until: Callable[[PageModel], float | None] = field(default=lambda page_model: None)
    """A value that the axis should show, such as the number of workers."""

    def is_there(self, page_model: PageModel) -> bool:
        return not page_model.timeline.line(self.name).is_empty

    def data(self, page_model: PageModel) -> dict[str, Columns]:
        found = {self.name: _columns(page_model.timeline.line(self.name)), **shared_columns(page_model)}
        if self.expected is not None:
            found[f"{self.name}-expected"] = _columns(page_model.timeline.line(self.expected))
        return found

    def look(self, page_model: PageModel) -> tuple[bool]:
        return (self._logarithmic(page_model),)

    def draw(self, page_model: PageModel, sources: Sources, steps: Range1d) -> figure:
        axis = "log" if self._logarithmic(page_model) else "linear"
        plot = time_figure(self.name, steps, HEIGHT, y_axis_type=axis)
        source = sources[self.name]
        plot.varea("x", "low", "high", source=source, fill_color=BLUE, fill_alpha=0.25)
        line = plot.line("x", "mean", source=source, line_color=BLUE, line_width=2)
        if self.expected is not None:
            dashes = {"line_color": ORANGE, "line_width": 2, "line_dash": "dashed"}
            plot.line("x", "mean", source=sources[f"{self.name}-expected"], **dashes)
        rows = [
            ("step", "@x{0,0}"),
            (self.line_is, "@mean{%.4g}"),
            ("smallest", "@low{%.4g}"),
            ("largest", "@high{%.4g}"),
        ]
        plot.add_tools(hover(rows, mode="vline", renderers=[line]))
        mark_acts(plot, sources)
        top = self.until(page_model)
        if top is not None:
            plot.y_range = Range1d(0, top * 1.05)
        return plot

    def caption(self, page_model: PageModel) -> str:
        line = page_model.timeline.line(self.name).finite()
        first, last = (f"{spoken(value)}{self.unit}" for value in (line.mean_T[0], line.mean_T[-1]))
        low, high = (f"{spoken(value)}{self.unit}" for value in _extremes(line))
        axis = " The axis is logarithmic." if self._logarithmic(page_model) else ""
        broken = f" At {count(line.broken, 'step')} it was no finite number." if line.broken else ""
        return (
            f"{self.says} The line goes from {first} to {last}; all values lie between {low} and {high}.{broken}{axis}"
            f"{caption_of_marks(page_model)}"
        )

    def table(self, page_model: PageModel) -> Table:
        line = page_model.timeline.line(self.name).finite()
        chosen = np.unique(np.linspace(0, len(line.step_T) - 1, ROWS).round().astype(int))
        columns = (line.mean_T, line.low_T, line.high_T)
        rows = [[f"{line.step_T[at]:,.0f}", *(spoken(column[at]) for column in columns)] for at in chosen]
        return Table(("around step", self.line_is, "smallest", "largest"), rows)

    def _logarithmic(self, page_model: PageModel) -> bool:
        line = page_model.timeline.line(self.name).finite()
        if line.is_empty or not self.may_be_logarithmic:
            return False
        smallest, largest = _extremes(line)
        top = line.mean_T.max()
        return bool(smallest > 0 and (top > WIDE * line.mean_T.min() or largest > WIDE * top))


def _columns(line: Line) -> Columns:
    return {"x": line.step_T, "mean": line.mean_T, "low": line.low_T, "high": line.high_T}


def _extremes(line: Line) -> tuple[float, float]:
    return float(min(line.low_T.min(), line.mean_T.min())), float(max(line.high_T.max(), line.mean_T.max()))
