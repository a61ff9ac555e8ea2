"""The page that lists the runs, and what names can do to it: nothing."""

from html.parser import HTMLParser

import pytest

from html_payloads import PAYLOADS
from unisono.common.terminal import plain
from unisono.show.live_server import routes
from unit.show.live_server.serving import serving, write_run

NAMES = [
    *PAYLOADS,
    "{place}",
    "{rows}",
    "{0.__class__}",
    "%s%n",
    "\u202egnp.exe",
    "<td>",
    "</table>",
    "</main>",
    "&",
    "&amp;",
]
"""Also such as would confuse the making of the page."""


class Outline(HTMLParser):
    """Elements with their attributes, and the text of the table's cells."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.cells, self.comments = [], [], []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        names = [(name, "" if name == "href" and tag == "a" else value) for name, value in attributes]
        self.elements.append((tag, names))
        self._inside = tag in ("a", "td")
        if self._inside:
            self.cells.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.cells[-1] += data

    def handle_comment(self, data):
        self.comments.append(data)


def page_of(folder, names, scripts):
    folder.mkdir()
    for number, (name, script) in enumerate(zip(names, scripts, strict=True)):
        write_run(folder / name, script=script, started=1e9 - number)
    with serving(folder) as served:
        return served.ask("/").text


def test_names_are_nothing_but_text(tmp_path):
    assert len(NAMES) > 40
    # A name in a file system has no slash and no NUL; the script's name in the run file may be anything.
    folders = [f"{number} {payload}".replace("/", "|").replace("\0", "") for number, payload in enumerate(NAMES)]
    innocent = [f"run-{number}" for number in range(len(NAMES))]
    found = Outline(page_of(tmp_path / "<img src=x onerror=alert(1)>", folders, NAMES))
    expected = Outline(page_of(tmp_path / "innocent", innocent, innocent))
    assert found.elements == expected.elements
    assert found.comments == []
    assert found.cells[0::5] == [plain(name) for name in folders]
    assert found.cells[1::5] == [plain(script) for script in NAMES]


def test_the_outline_would_notice_an_element():
    """The test above is only worth as much as this."""
    assert Outline("<td><b onclick=x>y</b></td>").elements != Outline("<td>y</td>").elements


def test_nothing_is_loaded_from_elsewhere_and_no_script_stands_in_the_page(tmp_path):
    page = page_of(tmp_path / "runs", ["a"], ["train"])
    sources = [dict(names) for tag, names in Outline(page).elements if tag in ("script", "link", "img", "iframe")]
    assert [source.get("src") or source.get("href") for source in sources] == [
        "data:,",
        "/static/list.css",
        "/static/list.js",
    ]
    assert "<script src=" in page
    assert page.count("<script") == 1


def test_what_the_list_says_of_a_run(tmp_path):
    write_run(tmp_path / "old", steps=1_200, started=1e9, script="train", ended=True)
    write_run(tmp_path / "new", steps=0, started=1e9 + 60, script="eval")
    with serving(tmp_path) as served:
        cells = Outline(served.ask("/").text).cells
    (name, script, started, last_step, state), old = cells[:5], cells[5:]
    assert (name, script, last_step, state) == ("new", "eval", "", "running")
    assert started.startswith("2001-09-0")
    assert (old[0], old[1], old[3], old[4]) == ("old", "train", "1,199", "finished")


def test_an_empty_folder_is_waited_for(tmp_path):
    with serving(tmp_path) as served:
        assert "No run yet" in served.ask("/").text
        write_run(tmp_path / "first")
        served.server.site._run_index._looked = float("-inf")
        assert Outline(served.ask("/").text).cells[0] == "first"


@pytest.mark.parametrize("started", [1e300, -1e300, 0.0])
def test_an_impossible_time_is_no_error(tmp_path, started):
    write_run(tmp_path / "run", started=started)
    with serving(tmp_path) as served:
        assert Outline(served.ask("/").text).cells[0] == "run"


def test_a_long_list_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(routes, "MOST_SHOWN", 3)
    for number in range(5):
        write_run(tmp_path / f"run-{number}", started=1e9 + number)
    with serving(tmp_path) as served:
        page = served.ask("/").text
    assert Outline(page).cells[0::5] == ["run-4", "run-3", "run-2"]
    assert "2 older ones are not shown." in page
