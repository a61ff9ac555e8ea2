"""What all charts have in common: named sources in, a Bokeh figure out, and words for those who do not see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from bokeh.models import (
    BasicTicker,
    BoxAnnotation,
    BoxZoomTool,
    ColumnDataSource,
    HoverTool,
    LinearColorMapper,
    Range1d,
)
from bokeh.palettes import Blues256, Oranges256, diverging_palette
from bokeh.plotting import figure

from unisono.show.page.page_model import PageModel
from unisono.show.page.stretches import Array

BLUE, ORANGE = "#0072b2", "#d55e00"
"""From the palette of Okabe and Ito."""

SEVERITY = {"critical": "#c62828", "warning": "#e69f00", "info": "#5b8db8"}
UNKNOWN = "#a0a0a0"
NOT_FINITE = "#000000"
MARK = "#cc3399"
ACTION = "#009e73"

MORE_IS_ORANGE: tuple[str, ...] = tuple(diverging_palette(Blues256, Oranges256, 255))
"""Dark blue, white at zero, dark orange."""

LESS_IS_ORANGE = MORE_IS_ORANGE[::-1]


Columns: TypeAlias = dict[str, Any]
Sources: TypeAlias = Mapping[str, ColumnDataSource]
LIMITS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
LEFT_MARGIN = 62
"""The same for all, so that equal steps stand below each other."""


class Table(NamedTuple):
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = "Numbers"


class Key(NamedTuple):
    """What the two ends of the colours mean."""

    low: str
    high: str
    less_is_orange: bool

    @classmethod
    def of(cls, ends: tuple[str, str], limit: float, less_is_orange: bool) -> Key:
        """With the limit in the words."""
        low, high = (words.format(limit) for words in ends)
        return cls(low, high, less_is_orange)


class Chart(ABC):
    name: str
    heading: str
    role: str = "time line"

    @abstractmethod
    def is_there(self, page_model: PageModel) -> bool:
        """Whether there is anything to show."""

    @abstractmethod
    def data(self, page_model: PageModel) -> dict[str, Columns]:
        """The columns of each of its sources."""

    @abstractmethod
    def draw(self, page_model: PageModel, sources: Sources, steps: Range1d) -> figure:
        """The figure; drawn again only when `look` changes."""

    @abstractmethod
    def caption(self, page_model: PageModel) -> str:
        """What is to be seen, in words."""

    def look(self, page_model: PageModel) -> tuple[Any, ...]:
        """What the figure depends on besides the columns."""
        return ()

    def key(self, page_model: PageModel) -> Key | None:
        """Of a coloured map."""
        return None

    def table(self, page_model: PageModel) -> Table | None:
        return None


def time_figure(name: str, steps: Range1d, height: int, **options: Any) -> figure:
    """Over the steps that all charts share; dragging sideways zooms in all of them."""
    plot = figure(
        name=name,
        height=height,
        sizing_mode="stretch_width",
        x_range=steps,
        tools=[BoxZoomTool(dimensions="width")],
        toolbar_location=None,
        min_border_left=LEFT_MARGIN,
        min_border_right=12,
        **options,
    )
    plot.add_layout(
        BoxAnnotation(name=f"span-{name}", fill_color=MARK, fill_alpha=0.12, line_color=MARK, visible=False)
    )
    plot.xaxis.formatter.use_scientific = False
    return bare(plot)


def bare(plot: figure) -> figure:
    plot.background_fill_alpha = plot.border_fill_alpha = 0
    plot.outline_line_color = None
    plot.grid.grid_line_alpha = 0.35
    plot.yaxis.minor_tick_line_color = plot.xaxis.minor_tick_line_color = None
    return plot


def hover(rows: Sequence[tuple[str, str]], **options: Any) -> HoverTool:
    """Numbers with four digits."""
    formatters = {text.partition("{")[0]: "printf" for _, text in rows if "{%" in text}
    return HoverTool(tooltips=list(rows), formatters=formatters, **options)


def limit_of(values: Array, largest: float) -> float:
    """Where the colours end. One value in two hundred is beyond: a single extreme one should not pale all others."""
    known = np.abs(values[np.isfinite(values)])
    reached = float(np.quantile(known, 0.995)) if len(known) else 0.0
    return min(largest, next((limit for limit in LIMITS if limit >= reached), reached))


def draw_image(plot: figure, source: ColumnDataSource, limit: float, less_is_orange: bool, **options: Any) -> Any:
    """The values in colours, and black where they are infinite."""
    place = {"x": "x", "y": "y", "dw": "dw", "dh": "dh", "source": source, **options}
    image = plot.image("image", color_mapper=colours(limit, less_is_orange), **place)
    if "broken" in source.data:
        black = LinearColorMapper(palette=["#00000000", NOT_FINITE], low=0, high=1)
        plot.image("broken", color_mapper=black, **place)
    return image


MOST_DRAWN = float(np.finfo(np.float32).max)


def image_columns(images: Sequence[Array]) -> Columns:
    """What is infinite has an image of its own, where there is any: a palette has no place for it."""
    drawn = (np.clip(np.where(np.isposinf(one), np.nan, one), -MOST_DRAWN, MOST_DRAWN) for one in images)
    columns = {"image": [np.ascontiguousarray(one, np.float32) for one in drawn]}
    if any(np.isposinf(one).any() for one in images):
        columns["broken"] = [np.ascontiguousarray(np.isposinf(one), np.uint8) for one in images]
    return columns


def colours(limit: float, less_is_orange: bool) -> LinearColorMapper:
    """Values beyond the limit have the colours at its ends."""
    palette = LESS_IS_ORANGE if less_is_orange else MORE_IS_ORANGE
    return LinearColorMapper(palette=palette, low=-limit, high=limit, nan_color=UNKNOWN)


def number_ranks(axis: Any, page_model: PageModel) -> None:
    """Whole numbers; the launcher's own where they are not 0, 1, 2, ..."""
    axis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0, mantissas=[1, 2, 5])
    if not page_model.ranks_are_rows:
        axis.major_label_overrides = {row: str(rank) for row, rank in enumerate(page_model.ranks)}


def rank_row(place: str, page_model: PageModel, word: str = "rank") -> list[tuple[str, str]]:
    """For a tooltip, which only knows the row."""
    return [(word, f"{place}{{0}}")] if page_model.ranks_are_rows else []


def spoken(value: float) -> str:
    return f"{value:.3g}"
