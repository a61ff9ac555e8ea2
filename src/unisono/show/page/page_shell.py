"""What every page stands in: head, header, footer, styles and scripts; nothing from outside, and no script but ours."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from bokeh.resources import Resources

from unisono import __version__
from unisono.show.page.html import Html, text

LINE_ENDS = {ord("<"): "\\u003c", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""Characters that would end the block of data or, in old browsers, a line of it."""


def self_contained(title: str, content: Html, drawn: Mapping[str, Any]) -> Html:
    """A page as one file, with its charts.

    :param content: The HTML between header and footer.
    :param drawn: As `embed_items` takes it.
    """
    scripts = [bokeh_script(), own("page.js")]
    data = json.dumps(drawn, allow_nan=False, separators=(",", ":")).translate(LINE_ENDS)
    return framed(
        title,
        content,
        policy=_policy(scripts),
        style=f"<style>{own('page.css')}</style>",
        scripts=f'<script type="application/json" id="data">{data}</script>'
        + "".join(f"<script>{script}</script>" for script in scripts),
    )


def framed(title: str, content: Html, style: Html, scripts: Html, policy: Html = "", state_url: str = "") -> Html:
    """
    :param state_url: Where the page's script asks for news; empty for a file.
    """
    return Template(own("page.html")).substitute(
        title=text(title),
        content=content,
        policy=policy,
        style=style,
        scripts=scripts,
        status="Reading the run." if state_url else "",
        brand='<a href="/">unisono</a>' if state_url else "unisono",
        attributes=f' data-state="{text(state_url)}"' if state_url else "",
        version=text(__version__),
    )


def filled(template: str, slots: Mapping[str, Html]) -> Html:
    """Slots that are not given stay empty."""
    names = {name.removeprefix("slot-").replace("-", "_"): content for name, content in slots.items()}
    return Template(own(template)).substitute(defaultdict(str, names))


@cache
def own(name: str) -> str:
    return files("unisono.show.page").joinpath(name).read_text("utf-8")


@cache
def bokeh_script() -> str:
    """From the installed package."""
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw)


def _policy(scripts: list[str]) -> Html:
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    rules = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}; form-action \'none\'">'
