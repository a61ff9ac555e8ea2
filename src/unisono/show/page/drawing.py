"""The charts of a page as BokehJS takes them: a document at first, then only the columns that are new."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

from bokeh.core.serialization import Serializer
from bokeh.document import Document
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from unisono.show.page.chart_list import ALL
from unisono.show.page.charts.chart import Chart
from unisono.show.page.charts.snapshot_maps import chosen
from unisono.show.page.page_model import PageModel

DOCUMENT = "unisono"
_numbers = itertools.count(1)


class Drawing:
    """Drawn once; `changes` then speaks of the same models by their ids."""

    def __init__(self, page_model: PageModel) -> None:
        self.look = look(page_model)
        self.structure = f"{next(_numbers)}-{self.look}"
        """Names these models and no others: what looks the same may have been drawn anew meanwhile."""

        self._charts = charts_of(page_model)
        self._steps = Range1d(*extent(page_model), name="steps")
        self._sources = {
            name: ColumnDataSource(columns, name=name) for name, columns in self._columns(page_model).items()
        }
        self._figures = {chart.name: chart.draw(page_model, self._sources, self._steps) for chart in self._charts}

    def whole(self, page_model: PageModel) -> dict[str, Any]:
        """With what our own script has to know."""
        return as_items(self._figures) | self.facts(page_model)

    def changes(self, page_model: PageModel) -> dict[str, Any]:
        """The columns of all sources, as events for `apply_json_patch`."""
        events = [
            {
                "kind": "ColumnDataChanged",
                "model": {"id": self._sources[name].id},
                "attr": "data",
                "data": Serializer(deferred=False).encode(columns),
                "cols": None,
            }
            for name, columns in self._columns(page_model).items()
        ]
        return {"events": events} | self.facts(page_model)

    def facts(self, page_model: PageModel) -> dict[str, Any]:
        snapshots = page_model.snapshots.all()
        return {
            "structure": self.structure,
            "steps": list(extent(page_model)),
            "readings": [snapshot.step for snapshot in snapshots],
            "reading": chosen(page_model) if snapshots else 0,
        }

    def _columns(self, page_model: PageModel) -> dict[str, dict[str, Any]]:
        return {name: columns for chart in self._charts for name, columns in chart.data(page_model).items()}


def as_items(figures: Mapping[str, figure]) -> dict[str, Any]:
    """For `Bokeh.embed.embed_items`; a figure goes into the element that is called after its chart."""
    document = Document()
    with document.models.freeze():  # else all models are counted again with each root
        for one in figures.values():
            document.add_root(one)
    roots = {one.id: f"chart-{name}" for name, one in figures.items()}
    item = {"docid": DOCUMENT, "roots": roots, "root_ids": list(roots)}
    drawn = {"docs": {DOCUMENT: document.to_json(deferred=False)}, "items": [item]}
    document.clear()
    return drawn


def charts_of(page_model: PageModel) -> list[Chart]:
    return [chart for chart in ALL if chart.is_there(page_model)]


def look(page_model: PageModel) -> str:
    """Changes when the charts must be drawn anew."""
    looks = [(chart.name, chart.look(page_model)) for chart in charts_of(page_model)]
    return hashlib.sha256(repr((looks, page_model.ranks)).encode()).hexdigest()[:16]


def extent(page_model: PageModel) -> tuple[float, float]:
    first = page_model.timeline.first_step or 0
    # Of the step at which the guard stopped the job nothing else is known.
    last = max([page_model.timeline.last_step, *(act.step for act in page_model.acts)])
    return first - 0.5, max(last, first + 1) + 0.5
