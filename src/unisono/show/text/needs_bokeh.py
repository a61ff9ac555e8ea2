"""Packages that only some reports need, asked for when they are needed."""

from __future__ import annotations

from importlib.util import find_spec

from unisono.common.errors import UserError


def needs_bokeh() -> None:
    """Raises `UserError` where it is missing."""
    if find_spec("bokeh") is None:
        raise UserError(
            "The page requires ['bokeh'] to be installed. Found none. Install it with: pip install \"unisono[report]\""
        )
