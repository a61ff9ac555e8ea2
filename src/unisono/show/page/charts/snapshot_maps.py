"""Matrices at one stored reading, which the reader chooses: pairs of workers, and layers by rank.

S = snapshots, W = workers, G = layer groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from bokeh.models import CDSView, FixedTicker, IndexFilter, Range1d
from bokeh.plotting import figure

from unisono.common.layer_groups import MOST_GROUPS
from unisono.records import FloatRows
from unisono.show.page.charts.chart import (
    LEFT_MARGIN,
    Chart,
    Columns,
    Key,
    Sources,
    Table,
    bare,
    draw_image,
    hover,
    image_columns,
    limit_of,
    number_ranks,
    rank_row,
    spoken,
)
from unisono.show.page.page_model import PageModel
from unisono.show.page.snapshots import MatrixSnapshot, nearest
from unisono.show.page.stretches import Array

LONGEST_NAME = 20
TABLE_UP_TO = 12


@dataclass(frozen=True)
class SnapshotMap(Chart):
    name: str
    heading: str
    says: str
    shows: str
    ends: tuple[str, str]
    rows: Callable[[MatrixSnapshot], FloatRows]
    measure: str = "Cosines"
    least: float = 0.0
    largest: float = np.inf
    """Where the colours may end."""

    prepared: Callable[[Array], Array] = lambda value_RW: value_RW
    less_is_orange: bool = True
    by_layer: bool = False
    role: str = "heat map"

    def is_there(self, page_model: PageModel) -> bool:
        return any(self.rows(snapshot) for snapshot in page_model.snapshots.all())

    def data(self, page_model: PageModel) -> dict[str, Columns]:
        snapshots = page_model.snapshots.all()
        images = [self._values(snapshot) for snapshot in snapshots]
        count = len(images)
        place = {"x": [-0.5] * count, "y": [-0.5] * count}
        size = {"dw": [image.shape[1] for image in images], "dh": [image.shape[0] for image in images]}
        return {
            self.name: {**image_columns(images), "step": [snapshot.step for snapshot in snapshots], **place, **size}
        }

    def look(self, page_model: PageModel) -> tuple[int, int, float, bool]:
        values = [self._values(snapshot) for snapshot in page_model.snapshots.all()]
        rows, workers = values[-1].shape
        return rows, workers, self._limit(page_model), any(bool(np.isposinf(one).any()) for one in values)

    def draw(self, page_model: PageModel, sources: Sources, steps: Range1d) -> figure:
        rows, workers, limit, _ = self.look(page_model)
        size = {"height": 70 + int(np.clip(20 * rows, 80, 420)), "sizing_mode": "stretch_width"}
        ranges = {"x_range": Range1d(-0.5, workers - 0.5), "y_range": Range1d(rows - 0.5, -0.5)}
        plot = bare(
            figure(name=self.name, tools=[], toolbar_location=None, min_border_left=LEFT_MARGIN, **ranges, **size)
        )
        view = CDSView(filter=IndexFilter(indices=[chosen(page_model)], name=f"chosen-{self.name}"))
        image = draw_image(plot, sources[self.name], limit, self.less_is_orange, view=view)
        number_ranks(plot.xaxis, page_model)
        plot.xaxis.axis_label = "rank"
        plot.yaxis.axis_label = "layers" if self.by_layer else "rank"
        self._name_rows(plot, page_model)
        across = rank_row("$x", page_model)
        down = [] if self.by_layer else rank_row("$y", page_model, "and rank")
        plot.add_tools(hover([*across, *down, (self.shows, "@image{%.3g}")], renderers=[image]))
        plot.grid.visible = False
        return plot

    def caption(self, page_model: PageModel) -> str:
        return self.says

    def key(self, page_model: PageModel) -> Key:
        return Key.of(self.ends, self._limit(page_model), self.less_is_orange)

    def table(self, page_model: PageModel) -> Table | None:
        snapshot = page_model.snapshots.all()[chosen(page_model)]
        rows = self.rows(snapshot)
        if not rows or len(rows[0]) > TABLE_UP_TO or len(rows) > MOST_GROUPS:
            return None
        names = layer_names(page_model) if self.by_layer else [f"rank {rank}" for rank in page_model.ranks]
        cells = [["-" if value is None else spoken(value) for value in row] for row in rows]
        head = ["", *(f"rank {rank}" for rank in page_model.ranks)]
        named = [[name, *row] for name, row in zip(names, cells, strict=False)]
        return Table(head, named, f"{self.measure} at step {snapshot.step:,}")

    def _values(self, snapshot: MatrixSnapshot) -> Array:
        return self.prepared(np.array(self.rows(snapshot), dtype=float, ndmin=2))

    def _limit(self, page_model: PageModel) -> float:
        """Of all readings, so that they can be compared; a worker with itself does not count."""
        value_SRW = np.array([self._values(snapshot) for snapshot in page_model.snapshots.all()])
        if not self.by_layer:
            value_SRW[:, np.eye(value_SRW.shape[1], dtype=bool)] = np.nan
        return max(self.least, limit_of(value_SRW, self.largest))

    def _name_rows(self, plot: figure, page_model: PageModel) -> None:
        if not self.by_layer:
            number_ranks(plot.yaxis, page_model)
            return
        names = layer_names(page_model)
        plot.yaxis.ticker = FixedTicker(ticks=list(range(len(names))))
        plot.yaxis.major_label_overrides = dict(enumerate(names))


def chosen(page_model: PageModel) -> int:
    """The place of the reading that is shown first: where the leading finding begins, else the newest."""
    snapshots = page_model.snapshots.all()
    grave = [finding for finding in page_model.checkup().findings if finding.at_least("warning")]
    return nearest(snapshots, grave[0].first_step) if grave else len(snapshots) - 1


def layer_names(page_model: PageModel) -> list[str]:
    groups = page_model.attempt.groups if page_model.attempt is not None else ()
    return [_short(name) for name in groups]


def _short(name: str) -> str:
    """Without dollar signs, which Bokeh takes for formulas."""
    name = name.replace("$", "")
    return name if len(name) <= LONGEST_NAME else f"{name[:9]}…{name[-10:]}"
