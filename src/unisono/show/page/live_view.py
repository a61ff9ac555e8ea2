"""The page while a run is followed: the whole at first, then what is new."""

from __future__ import annotations

from typing import Any

from unisono.records import Record
from unisono.show.page.drawing import Drawing, look
from unisono.show.page.html import Html
from unisono.show.page.html_slots import captions, frames, words
from unisono.show.page.page_file import title_of
from unisono.show.page.page_model import PageModel
from unisono.show.page.page_shell import bokeh_script, filled, framed, own


class LiveView:
    """One per run."""

    def __init__(self) -> None:
        self._page_model = PageModel()
        self._drawing: Drawing | None = None

    def see(self, record: Record) -> None:
        self._page_model.see(record)

    def state(self, have: str) -> dict[str, Any]:
        """
        Everything, or only the new columns for a browser that has the same charts.

        :param have: The structure of the charts that the browser shows; empty at first.
        """
        page_model = self._page_model
        if self._drawing is None or self._drawing.look != look(page_model):
            self._drawing = Drawing(page_model)
        slots = words(page_model)
        if have == self._drawing.structure:
            return self._answer(slots | captions(page_model), self._drawing.changes(page_model))
        return self._answer(slots | frames(page_model), self._drawing.whole(page_model))

    def _answer(self, slots: dict[str, Html], drawn: dict[str, Any]) -> dict[str, Any]:
        return {"title": title_of(self._page_model), "slots": slots, "drawn": drawn}


def shell(title: str, state_url: str) -> Html:
    """The page before anything is known; its script asks for the rest."""
    return framed(
        title,
        filled("run.html", {}),
        style='<link rel="stylesheet" href="/static/page.css">',
        scripts='<script src="/static/bokeh.min.js"></script><script src="/static/page.js"></script>',
        state_url=state_url,
    )


def static_files() -> dict[str, tuple[str, bytes]]:
    """Name to content type and content."""
    script = "text/javascript; charset=utf-8"
    return {
        "bokeh.min.js": (script, bokeh_script().encode()),
        "page.js": (script, own("page.js").encode()),
        "page.css": ("text/css; charset=utf-8", own("page.css").encode()),
    }
