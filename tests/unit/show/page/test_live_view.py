"""The page while a run is followed: the whole when something must be drawn anew, else only what is new."""

import json

import pytest

import invented_runs as invented

pytest.importorskip("bokeh")

from unisono.show.page import drawing
from unisono.show.page import live_view as view_module
from unisono.show.page.live_view import LiveView, shell, static_files


@pytest.fixture
def view():
    found = LiveView()
    for record in (invented.header("followed"), invented.attempt(4), *invented.steps(4, 60)):
        found.see(record)
    return found


def test_at_first_everything_comes(view):
    state = view.state("")
    assert state["title"] == "followed"
    assert set(state["drawn"]["docs"]) == {"unisono"}
    assert {"slot-verdict", "slot-findings", "slot-time-lines", "slot-facts"} <= set(state["slots"])
    json.dumps(state, allow_nan=False)


def test_then_only_the_columns_and_the_words(view):
    have = view.state("")["drawn"]["structure"]
    for record in invented.steps(4, 5, first=60):
        view.see(record)
    state = view.state(have)
    assert "docs" not in state["drawn"]
    assert state["drawn"]["steps"][1] == 64.5
    assert "slot-time-lines" not in state["slots"]
    assert "caption-loss" in state["slots"]
    json.dumps(state, allow_nan=False)


def test_charts_that_were_drawn_anew_are_not_patched_with_others_that_only_look_the_same(view, monkeypatch):
    first = view.state("")["drawn"]["structure"]
    for look in ("another", drawing.look(view._page_model)):
        monkeypatch.setattr(drawing, "look", lambda page_model, look=look: look)
        monkeypatch.setattr(view_module, "look", lambda page_model, look=look: look)
        view.state("")
    assert "docs" in view.state(first)["drawn"]


def test_a_finding_brings_its_lane(view):
    have = view.state("")["drawn"]["structure"]
    broken = {"finite_W": (True, False, True, True), "nonfinite_W": (0, 3, 0, 0)}
    for record in invented.steps(4, 20, first=60, **broken):
        view.see(record)
    state = view.state(have)
    assert "docs" in state["drawn"]
    assert "chart-lane" in state["slots"]["slot-time-lines"]


def test_before_anything_is_written_there_is_a_page():
    json.dumps(LiveView().state(""), allow_nan=False)


def test_the_shell_loads_only_what_the_server_has():
    page = shell("a <b>", "/run/0/state")
    for name in static_files():
        assert f'"/static/{name}"' in page
    assert "a &lt;b&gt;" in page
    assert 'data-state="/run/0/state"' in page


def test_an_act_of_the_guard_brings_its_lane_and_the_next_only_its_columns(view):
    have = view.state("")["drawn"]["structure"]
    view.see(invented.decision(40))
    state = view.state(have)
    assert "chart-actions" in state["slots"]["slot-time-lines"]
    assert "skipped on all workers" in state["slots"]["slot-actions"]
    view.see(invented.decision(50))
    state = view.state(state["drawn"]["structure"])
    assert "docs" not in state["drawn"]
    assert "steps 40 and 50" in state["slots"]["caption-actions"]
