"""Two runs on one page."""

import re

import pytest

import invented_runs as invented
from unisono.cli.main import main

pytest.importorskip("bokeh")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invented.run(tmp_path / "before", count=400, opposed=1, name="before <b>")
    invented.run(tmp_path / "after", count=400, name="after")


def test_it_says_whether_the_fix_worked_and_draws_both_runs(runs, tmp_path, capsys):
    assert main(["compare", "before", "after", "-o", "page.html"]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    page = (tmp_path / "page.html").read_text()
    assert "UN501 is gone" in said
    assert said[1:] in page
    assert "before &lt;b&gt; and after" in page
    assert set(re.findall(r'id="chart-([\w-]+)"', page)) >= {"loss", "norm", "cos", "effective_workers", "seconds"}


def test_runs_without_steps_have_a_page_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        invented.write(tmp_path / name, invented.header(name), invented.attempt(2))
    assert main(["compare", "a", "b", "-o", "page.html"]) == 0
    assert "chart-loss" not in (tmp_path / "page.html").read_text()


def test_a_wrong_place_is_told_before_anything_is_read(runs, capsys):
    assert main(["compare", "before", "after", "-o", "no/where.html"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Make it first" in captured.err
