"""The page in a real browser: opened from disk without a network, clicked, measured, attacked."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

import invented_runs as invented
from browser import chromium, needs_browser
from html_payloads import MARK, PAYLOADS

pytest.importorskip("bokeh")
pytest.importorskip("playwright")

from PIL import Image

from unisono.records import FactsRecord, WorkerFacts
from unisono.show.page.page_file import render
from unisono.show.page.page_model import read_page_model

pytestmark = needs_browser()

FRAME = """name => {
  const figure = Bokeh.documents[0].roots().find(one => one.name === name);
  const view = Bokeh.index.find_one(figure), box = view.frame.bbox;
  const place = view.el.getBoundingClientRect();
  return [place.left + box.left, place.top + box.top, box.width, box.height];
}"""


@pytest.fixture(scope="module")
def open_tab():
    with chromium(offline=True) as tabs:
        yield tabs


def saved(folder, run):
    path = folder / "report.html"
    path.write_text(render(read_page_model(run)), "utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def opposed(tmp_path_factory):
    """Rank 2 of 4 has had the wrong sign from step 120 on."""
    folder = tmp_path_factory.mktemp("opposed")
    right, wrong = invented.steps(4, 120), invented.steps(4, 280, first=120, opposed=2, seed=1)
    return saved(folder, invented.write(folder, invented.header(), invented.attempt(4), *right, *wrong))


def pixels(tab, name):
    """The inside of a chart as (height, width, 3)."""
    tab.page.locator(f"#chart-{name}").scroll_into_view_if_needed()
    left, top, width, height = tab.page.evaluate(FRAME, name)
    clip = {"x": left, "y": top, "width": width, "height": height}
    return np.asarray(Image.open(io.BytesIO(tab.page.screenshot(clip=clip))).convert("RGB"), dtype=float)


def orange(cells):
    """Red minus blue, of each row."""
    return (cells[..., 0] - cells[..., 2]).mean(axis=tuple(range(1, cells.ndim - 1)))


def shown_steps(tab):
    return tab.page.evaluate(
        "(() => { const r = Bokeh.documents[0].get_model_by_name('steps'); return [r.start, r.end] })()"
    )


def test_it_opens_from_disk_without_a_network_and_without_a_word_on_the_console(open_tab, opposed):
    tab = open_tab().open(opposed)
    assert tab.errors == []
    assert [request for request in tab.requests if not request.startswith(("file:", "data:", "blob:"))] == []
    assert tab.page.locator(".chart canvas").count() >= 14


def test_a_finding_clicked_moves_the_charts_to_its_steps(open_tab, opposed):
    tab = open_tab().open(opposed)
    before = shown_steps(tab)
    first, last = (int(tab.page.get_attribute(".jump", f"data-{end}")) for end in ("first", "last"))
    tab.page.locator(".jump").first.click()
    start, end = shown_steps(tab)
    assert before[0] < start <= first
    assert last <= end
    assert first <= int(tab.page.inner_text("#reading-step").removeprefix("step ")) <= first + 20
    assert "The charts show steps" in tab.page.inner_text("#status")
    tab.page.click("#all-steps")
    assert shown_steps(tab) == before
    assert tab.errors == []


def test_the_leading_finding_names_the_rank_that_the_maps_show(open_tab, opposed):
    tab = open_tab().open(opposed)
    assert "rank 2" in tab.page.inner_text(".finding .meta")
    for name in ("map-window", "map-cos"):
        cells = pixels(tab, name)
        height, width, _ = cells.shape
        late = cells[: height // 4 * 4, width // 2 :].reshape(4, height // 4, width - width // 2, 3)
        assert orange(late).argmax() == 2, name
        early = cells[: height // 4 * 4, : width // 5].reshape(4, height // 4, width // 5, 3)
        assert np.ptp(orange(early)) < np.ptp(orange(late)) / 3, name


def test_the_matrix_shows_the_pair_with_the_same_gradients(open_tab, tmp_path):
    run = invented.run(tmp_path, workers=5, count=60, twins=(1, 3))
    tab = open_tab().open(saved(tmp_path, run))
    cells = pixels(tab, "matrix")
    height, width, _ = cells.shape
    centre = (np.arange(5) + 0.5) / 5
    red = cells[(centre * height).astype(int)][:, (centre * width).astype(int), 0]
    dark_blue = {(int(row), int(column)) for row, column in np.argwhere(red < 60)}
    assert {pair for pair in dark_blue if pair[0] != pair[1]} == {(1, 3), (3, 1)}


def test_the_slider_chooses_the_reading(open_tab, tmp_path):
    right, wrong = invented.steps(4, 30), invented.steps(4, 30, first=30, twins=(0, 1))
    run = invented.write(tmp_path, invented.header(), invented.attempt(4), *right, *wrong)
    tab = open_tab().open(saved(tmp_path, run))
    red = []
    for place in ("0", "59"):
        tab.page.locator("#reading").fill(place)
        tab.page.wait_for_timeout(200)
        cells = pixels(tab, "matrix")
        red.append(cells[int(cells.shape[0] / 8), int(cells.shape[1] * 3 / 8), 0])
    assert tab.page.inner_text("#reading-step") == "step 59"
    assert red[0] > red[1] + 40


@pytest.mark.parametrize("width", [390, 1100])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_and_can_be_read(open_tab, opposed, width, scheme):
    tab = open_tab(width=width, color_scheme=scheme).open(opposed)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    ground, ink = (
        tab.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
    )
    assert contrast(ground, ink) > 7


def contrast(*colours):
    def luminance(colour):
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        return sum(w * ((c + 0.055) / 1.055) ** 2.4 for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)


def test_printed_it_is_light_also_in_the_dark(open_tab, opposed):
    tab = open_tab(color_scheme="dark").open(opposed)
    tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"


def test_the_charts_have_names_for_those_who_cannot_see_them(open_tab, opposed):
    tab = open_tab().open(opposed)
    named = tab.page.get_by_role("img").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    assert len([name for name in named if name]) >= 14
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "To the findings"


def attacked(folder, names):
    """A run in which everything that has a name is called so."""
    workers = len(names)
    facts = tuple(WorkerFacts(rank, name, 100 + rank, name) for rank, name in enumerate(names))
    attempt = replace(invented.attempt(workers), workers=facts, groups=tuple(names), torch=names[0], python=names[0])
    differ = FactsRecord(1, 0, 1e9, names[0], {names[0]: names[0]}, {name: tuple(names) for name in names[:3]})
    records = [replace(one, **layers(workers)) for one in invented.steps(workers, 24)]
    acts = [
        invented.decision(3 + place % 16, name, name, place, row=name, outcome=name, evidence={name: 1.0})
        for place, name in enumerate(names)
    ]
    header = invented.header("".join(names), "".join(names))
    return invented.write(folder, header, attempt, differ, replace(differ, topic="settings"), *records, *acts)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    acts = (
        invented.decision(40),
        invented.decision(160, "roll-back, skip", "the norm is huge", to_step=100),
        invented.decision(180, "reset-momentum", "spikes persist", dry=True),
    )
    return saved(folder, invented.write(folder, invented.header(), invented.attempt(4), *invented.steps(4, 200), *acts))


def green(cells):
    """Where green is stronger than red, of each column: the colour of the guard."""
    return (cells[..., 1] - cells[..., 0]).mean(axis=0)


def test_acts_of_the_guard_stand_on_the_time_lines_where_they_happened(open_tab, guarded):
    tab = open_tab().open(guarded)
    assert tab.errors == []
    for name in ("loss", "seconds"):
        strength = green(pixels(tab, name))
        at = {step: int((step + 0.5) / 200 * len(strength)) for step in (20, 40, 60, 130, 160, 190)}
        # Compared with what is beside them: lines and bands are coloured too.
        assert strength[at[40] - 2 : at[40] + 3].max() > strength[at[20]] + 20, name
        assert strength[at[160] - 2 : at[160] + 3].max() > strength[at[190]] + 20, name
        assert strength[at[130]] > max(strength[at[60]], strength[at[190]]) + 10, name


def test_a_mark_of_the_guard_tells_what_was_done_and_why(open_tab, guarded):
    tab = open_tab().open(guarded)
    tab.page.locator("#chart-actions").scroll_into_view_if_needed()
    left, top, width, height = tab.page.evaluate(FRAME, "actions")
    tab.page.mouse.move(left + 40.5 / 200 * width, top + height / 6)
    tab.page.wait_for_timeout(300)
    said = tab.page.locator(".bk-tooltip-row-value").all_inner_texts()
    assert said == ["40", "skipped on all workers", "rank 1's loss is not finite", "1-40-1"]


def test_the_guards_lane_has_the_margin_of_all_charts(open_tab, guarded):
    tab = open_tab().open(guarded)
    places = [tab.page.evaluate(FRAME, name) for name in ("actions", "loss")]
    assert abs(places[0][0] - places[1][0]) < 1
    assert abs(places[0][2] - places[1][2]) < 1


def layers(workers):
    return {"norm_GW": ((1.0,) * workers,) * workers, "cos_GW": ((0.1,) * workers,) * workers}


def assert_nothing_happens(tab):
    for name in ("lane", "actions", "loss", "map-cos", "matrix", "layers-cos"):
        if tab.page.locator(f"#chart-{name}").count():
            tab.page.locator(f"#chart-{name}").hover()
    tab.page.locator("summary").first.click()
    assert tab.page.evaluate("window.executed") is None
    assert [error for error in tab.errors if "dialog" in error] == []
    smuggled = "main :is(script, img, svg, iframe, object, embed, style, link, base, input:not(#reading))"
    assert tab.page.evaluate(f"document.querySelectorAll('{smuggled}').length") == 0


def test_forty_payloads_in_names_execute_nothing(open_tab, tmp_path):
    assert len(set(PAYLOADS)) >= 40
    tab = open_tab().open(saved(tmp_path, attacked(tmp_path, PAYLOADS)))
    assert MARK in tab.page.inner_text("h1")
    assert_nothing_happens(tab)


def test_the_payloads_would_execute_where_nothing_stops_them(open_tab):
    tab = open_tab()
    executed = 0
    for payload in PAYLOADS:
        tab.page.goto("about:blank")
        tab.page.evaluate("html => { document.open(); document.write('<p>' + html); document.close() }", payload)
        tab.page.wait_for_timeout(20)
        executed += tab.page.evaluate("window.executed") == 1
    assert executed >= 15


@pytest.mark.soak("payloads")
@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_alone_executes_nothing(open_tab, tmp_path, payload):
    tab = open_tab().open(saved(tmp_path, attacked(tmp_path, [payload] * 3)))
    assert_nothing_happens(tab)
    tab.page.context.close()


def test_the_data_is_strict_json(tmp_path):
    run = invented.run(tmp_path, count=40, grad_norm=lambda step: float("inf") if step == 20 else 0.5)
    html = render(read_page_model(run))
    data = html.partition('id="data">')[2].partition("</script>")[0]
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
