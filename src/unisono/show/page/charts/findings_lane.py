"""When each finding held: a bar for each, over the steps that all charts share."""

from __future__ import annotations

from bokeh.models import FactorRange, Range1d
from bokeh.plotting import figure

from unisono.records.finding import Finding
from unisono.show.analysis.checkup import count
from unisono.show.page.charts.chart import SEVERITY, Chart, Columns, Sources, hover, time_figure
from unisono.show.page.page_model import PageModel
from unisono.show.text.findings import spoken_ranks, spoken_steps

MOST = 12


class FindingsLane(Chart):
    name = "lane"
    heading = "When it was found"

    def is_there(self, page_model: PageModel) -> bool:
        return bool(page_model.checkup().findings)

    def data(self, page_model: PageModel) -> dict[str, Columns]:
        shown = _shown(page_model)
        columns = {
            "code": [finding.code for finding in shown],
            "left": [finding.first_step - 0.5 for finding in shown],
            "right": [page_model.last_step_of(finding) + 0.5 for finding in shown],
            "colour": [SEVERITY[finding.severity] for finding in shown],
            "ranks": [spoken_ranks(finding) or "nobody by name" for finding in shown],
            "steps": [spoken_steps(finding) for finding in shown],
        }
        return {self.name: columns}

    def look(self, page_model: PageModel) -> tuple[str, ...]:
        return tuple(finding.code for finding in _shown(page_model))

    def draw(self, page_model: PageModel, sources: Sources, steps: Range1d) -> figure:
        codes = FactorRange(*reversed(self.look(page_model)))
        plot = time_figure(self.name, steps, 60 + 24 * len(codes.factors), y_range=codes)
        style = {"fill_color": "colour", "line_color": None, "height": 0.6}
        bars = plot.hbar(y="code", left="left", right="right", source=sources[self.name], **style)
        plot.add_tools(hover([("", "@code"), ("", "@ranks"), ("", "@steps")], renderers=[bars]))
        plot.ygrid.visible = False
        return plot

    def caption(self, page_model: PageModel) -> str:
        told = [f"{one.code} {spoken_steps(one)}" for one in _shown(page_model)]
        more = len(page_model.checkup().findings) - len(told)
        further = [f"and {count(more, 'finding')} more"] if more else []
        return "; ".join([*told, *further]) + "."


def _shown(page_model: PageModel) -> tuple[Finding, ...]:
    return page_model.checkup().findings[:MOST]
