"""Rank by step in colours: who differs, and since when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from bokeh.models import Range1d
from bokeh.plotting import figure

from unisono.records.finding import Finding
from unisono.show.page.charts.chart import (
    MARK,
    Chart,
    Columns,
    Key,
    Sources,
    Table,
    draw_image,
    hover,
    image_columns,
    limit_of,
    number_ranks,
    rank_row,
    spoken,
    time_figure,
)
from unisono.show.page.page_model import PageModel
from unisono.show.page.rankmaps import RankMap
from unisono.show.page.stretches import Array

MARKED_FINDINGS, MARKED_RANKS = 3, 8
TABLE_UP_TO = 64


@dataclass(frozen=True)
class RankMapChart(Chart):
    name: str
    heading: str
    shows: str
    says: str
    ends: tuple[str, str]
    less_is_orange: bool = False
    largest: float = np.inf
    role: str = "heat map"

    def is_there(self, page_model: PageModel) -> bool:
        rank_map = self._map(page_model)
        return rank_map is not None and bool(np.isfinite(rank_map.filled()).any())

    def data(self, page_model: PageModel) -> dict[str, Columns]:
        rank_map = self._map(page_model)
        if rank_map is None:
            return {}
        stretches, value_RT = rank_map.stretches, rank_map.filled()
        image = {
            **image_columns([value_RT]),
            "x": [stretches.origin - 0.5],
            "y": [-0.5],
            "dw": [stretches.count * stretches.length],
            "dh": [len(value_RT) * rank_map.per_row],
        }
        return {self.name: image, f"{self.name}-marks": _marks(page_model)}

    def look(self, page_model: PageModel) -> tuple[int, float, bool, bool]:
        rank_map = self._map(page_model)
        broken = rank_map is not None and bool(np.isposinf(rank_map.filled()).any())
        return page_model.timeline.workers, self._limit(page_model), self._steps_per_column(page_model) == 1, broken

    def draw(self, page_model: PageModel, sources: Sources, steps: Range1d) -> figure:
        workers, rank_map = page_model.timeline.workers, self._map(page_model)
        height = 70 + int(np.clip(18 * workers, 60, 330))
        plot = time_figure(self.name, steps, height, y_range=Range1d(workers - 0.5, -0.5))
        image = draw_image(plot, sources[self.name], self._limit(page_model), self.less_is_orange)
        marks = {"line_color": MARK, "line_width": 2, "line_dash": "dashed", "fill_alpha": 0}
        plot.quad("left", "right", "top", "bottom", source=sources[f"{self.name}-marks"], **marks)
        number_ranks(plot.yaxis, page_model)
        plot.yaxis.axis_label = "rank"
        step = "step" if self._steps_per_column(page_model) == 1 else "around step"
        rank = "rank" if rank_map is None or rank_map.per_row == 1 else "around rank"
        rows = [(step, "$x{0,0}"), *rank_row("$y", page_model, rank), (self.shows, "@image{%.3g}")]
        plot.add_tools(hover(rows, renderers=[image]))
        plot.grid.visible = False
        return plot

    def caption(self, page_model: PageModel) -> str:
        rank_map = self._map(page_model)
        together = rank_map.per_row if rank_map is not None else 1
        rows = f" Each row holds {together} ranks." if together > 1 else ""
        steps = self._steps_per_column(page_model)
        columns = f" Each column holds {steps:,} steps." if steps > 1 else ""
        marked = [finding.code for finding in _marked(page_model)]
        outlined = f" Outlined: the ranks that {' and '.join(marked)} name{'s' * (len(marked) == 1)}." if marked else ""
        return f"{self.says}{columns}{rows}{outlined}"

    def key(self, page_model: PageModel) -> Key:
        return Key.of(self.ends, self._limit(page_model), self.less_is_orange)

    def table(self, page_model: PageModel) -> Table | None:
        rank_map = self._map(page_model)
        if rank_map is None or page_model.timeline.workers > TABLE_UP_TO:
            return None
        rows = [
            [str(rank), *_summary(value_T)] for rank, value_T in zip(page_model.ranks, rank_map.filled(), strict=True)
        ]
        return Table(("rank", f"{self.shows}, mean", "smallest", "largest"), rows)

    def _steps_per_column(self, page_model: PageModel) -> int:
        rank_map = self._map(page_model)
        return 1 if rank_map is None else rank_map.stretches.length

    def _map(self, page_model: PageModel) -> RankMap | None:
        return page_model.timeline.map(self.name.removeprefix("map-"))

    def _limit(self, page_model: PageModel) -> float:
        rank_map = self._map(page_model)
        return limit_of(np.array([]) if rank_map is None else rank_map.filled(), self.largest)


def _summary(value_T: Array) -> list[str]:
    """The mean is that of the finite values: a norm of zero is infinitely many doublings away, an infinite one too."""
    known, finite = value_T[~np.isnan(value_T)], value_T[np.isfinite(value_T)]
    mean = spoken(finite.mean()) if len(finite) else "-"
    return [mean, spoken(known.min()), spoken(known.max())] if len(known) else ["-"] * 3


def _marked(page_model: PageModel) -> list[Finding]:
    """Grave findings that name some of the workers, not all of them."""
    few = min(MARKED_RANKS, page_model.timeline.workers - 1)
    grave = [finding for finding in page_model.checkup().findings if finding.at_least("warning")]
    return [finding for finding in grave if 0 < len(finding.ranks) <= few][:MARKED_FINDINGS]


def _marks(page_model: PageModel) -> Columns:
    boxes = [(finding, row) for finding in _marked(page_model) for row in page_model.rows_of(finding.ranks)]
    return {
        "left": [finding.first_step - 0.5 for finding, _ in boxes],
        "right": [page_model.last_step_of(finding) + 0.5 for finding, _ in boxes],
        "top": [row + 0.5 for _, row in boxes],
        "bottom": [row - 0.5 for _, row in boxes],
    }
