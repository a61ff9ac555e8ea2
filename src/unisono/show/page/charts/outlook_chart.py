"""What more workers would bring: steps needed and efficiency, with intervals of 90 %."""

from __future__ import annotations

import numpy as np
from bokeh.models import FixedTicker, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from unisono.show.analysis.scaling import TIMES, Estimate
from unisono.show.page.charts.chart import BLUE, LEFT_MARGIN, ORANGE, Chart, Columns, Sources, Table, bare, hover
from unisono.show.page.page_model import PageModel

POINTS = 40


class OutlookChart(Chart):
    name = "outlook"
    heading = "What more workers would bring"
    role = "chart"

    def is_there(self, page_model: PageModel) -> bool:
        return page_model.outlook() is not None

    def data(self, page_model: PageModel) -> dict[str, Columns]:
        found = page_model.outlook()
        if found is None:
            return {}
        workers = found.workers * np.geomspace(TIMES[0], TIMES[-1], POINTS)
        steps = [found.steps(float(number)) for number in workers]
        efficiency = [found.efficiency(float(number)) for number in workers]
        return {self.name: {"x": workers, **_columns("steps", steps), **_columns("efficiency", efficiency)}}

    def look(self, page_model: PageModel) -> tuple[int]:
        return (page_model.timeline.workers,)

    def draw(self, page_model: PageModel, sources: Sources, steps: Range1d) -> figure:
        now = page_model.timeline.workers
        plot = bare(
            figure(
                name=self.name,
                height=240,
                sizing_mode="stretch_width",
                tools=[],
                toolbar_location=None,
                x_axis_type="log",
                x_range=Range1d(now * TIMES[0], now * TIMES[-1]),
                y_range=Range1d(0, 1.05),
                min_border_left=LEFT_MARGIN,
                min_border_right=12,
            )
        )
        source = sources[self.name]
        for name, colour, dash in (("steps", BLUE, "solid"), ("efficiency", ORANGE, "dashed")):
            plot.varea("x", f"{name}_low", f"{name}_high", source=source, fill_color=colour, fill_alpha=0.2)
            line = plot.line("x", name, source=source, line_color=colour, line_width=2, line_dash=dash)
        rows = [("workers", "@x{0}"), ("steps needed", "@steps{0 %}"), ("efficiency", "@efficiency{0 %}")]
        plot.add_tools(hover(rows, mode="vline", renderers=[line]))
        plot.xaxis.ticker = FixedTicker(ticks=[now * times for times in TIMES])
        plot.yaxis.formatter = NumeralTickFormatter(format="0 %")
        return plot

    def caption(self, page_model: PageModel) -> str:
        return (
            "Solid: steps to the same loss, of those needed now. Dashed: efficiency, what a sample brings compared "
            "with one worker alone. Bands: intervals of 90 %."
        )

    def table(self, page_model: PageModel) -> Table | None:
        found = page_model.outlook()
        if found is None:
            return None
        numbers = [times * found.workers for times in TIMES]
        rows = [[str(now), _percent(found.steps(now)), _percent(found.efficiency(now))] for now in numbers]
        return Table(("workers", "steps needed", "efficiency"), rows)


def _columns(name: str, estimates: list[Estimate]) -> Columns:
    return {
        name: [one.value for one in estimates],
        f"{name}_low": [one.low for one in estimates],
        f"{name}_high": [one.high for one in estimates],
    }


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.0f} % ({100 * estimate.low:.0f} to {100 * estimate.high:.0f})"
