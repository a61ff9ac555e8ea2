"""Soak: it goes on where it was stopped, ends in time, and a failure is written down."""

import json
from types import SimpleNamespace

import pytest

import soak

SETTINGS = """
[tool.pytest.ini_options]
addopts = ["--import-mode=importlib"]
markers = ["soak(part): full size"]
"""
TESTS = """
import pathlib
import pytest

@pytest.mark.soak("seeds")
@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed(seed):
    with pathlib.Path("ran").open("a") as file:
        file.write(f"{seed} ")
    assert seed == 0 or pathlib.Path("mended").exists()

@pytest.mark.soak("deaths")
def test_a_death():
    pytest.skip("nobody dies here")

def test_something_quick():
    raise AssertionError("soak has no business with it")
"""
GOOD, BAD = "tests/test_some.py::test_a_seed[0]", "tests/test_some.py::test_a_seed[1]"


@pytest.fixture
def root(tmp_path):
    for name, text in {"pyproject.toml": SETTINGS, "tests/test_some.py": TESTS, "src/some.py": "x = 1\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def recorded(root, part="seeds"):
    content = json.loads((root / "docs" / "evidence" / "soak" / f"{part}.json").read_text())
    assert content["part"] == part
    assert content["command"] == f"make soak PART={part}"
    return {row["case"]: row["outcome"] for row in content["cases"]}


def test_what_passed_is_not_run_again_until_the_sources_change(root):
    assert soak.main(["--part", "seeds"], root) == 1
    assert recorded(root) == {GOOD: "passed", BAD: "failed"}
    (root / "mended").touch()
    assert soak.main(["--part", "seeds"], root) == 0
    assert recorded(root) == {GOOD: "passed", BAD: "passed"}
    assert soak.main(["--part", "seeds"], root) == 0
    assert (root / "ran").read_text() == "0 1 1 "
    (root / "src" / "some.py").write_text("x = 2\n")
    assert soak.main([], root) == 0
    assert (root / "ran").read_text() == "0 1 1 0 1 "
    assert list(recorded(root, "deaths").values()) == ["skipped"]


def test_nothing_is_begun_when_no_time_is_left(root, monkeypatch):
    clock = iter(range(1000))
    # Not the clock of the whole process: threads of other tests may look at it too.
    monkeypatch.setattr(soak, "time", SimpleNamespace(monotonic=lambda: 40.0 * next(clock)))
    assert soak.main(["--part", "seeds", "--minutes", "1"], root) == 0
    assert recorded(root) == {GOOD: "passed"}
    assert soak.main(["--part", "seeds", "--minutes", "0"], root) == 0
    assert (root / "ran").read_text() == "0 "


def test_side_by_side_each_case_is_entered_as_well(root):
    assert soak.main(["--jobs", "2"], root) == 1
    assert recorded(root) == {GOOD: "passed", BAD: "failed"}
    assert list(recorded(root, "deaths").values()) == ["skipped"]


def test_an_unknown_part_is_told_in_one_line(root, capsys):
    assert soak.main(["--part", "sedes"], root) == 2
    assert capsys.readouterr().err == "PART should be one of deaths, seeds. Found `sedes`\n"
