"""Colours that people with any colour vision can tell apart, on light and dark ground."""

from __future__ import annotations

from bokeh.palettes import Blues256, Oranges256, diverging_palette

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
