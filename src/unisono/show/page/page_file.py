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
    story = read_page_model(run)
    with whole_file(target) as temporary:
        temporary.write_text(render(story), "utf-8")
    return story


def render(story: PageModel) -> Html:
    content = filled("run.html", words(story) | frames(story))
    return self_contained(title_of(story), content, Drawing(story).whole(story))


def title_of(story: PageModel) -> str:
    return story.checkup().run or "a run"
