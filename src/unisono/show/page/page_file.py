"""A run's page as one self-contained file."""

from __future__ import annotations

from os import PathLike

from unisono.common.whole_file import output_beside, whole_file
from unisono.records.runfile.lines import locate
from unisono.show.page.drawing import Drawing
from unisono.show.page.html import Html
from unisono.show.page.html_slots import frames, words
from unisono.show.page.page_model import PageModel, read_page_model
from unisono.show.page.page_shell import filled, self_contained


def write_report(run: str | PathLike[str], target: str | PathLike[str]) -> PageModel:
    """Reads a run and puts its page in place, whole or not at all. Raises `UserError` where that is not possible."""
    output_beside(locate(run), target)  # before the work, so that a wrong name is told at once
    page_model = read_page_model(run)
    with whole_file(target) as temporary:
        temporary.write_text(render(page_model), "utf-8")
    return page_model


def render(page_model: PageModel) -> Html:
    content = filled("run.html", words(page_model) | frames(page_model))
    return self_contained(title_of(page_model), content, Drawing(page_model).whole(page_model))


def title_of(page_model: PageModel) -> str:
    return page_model.checkup().run or "a run"
