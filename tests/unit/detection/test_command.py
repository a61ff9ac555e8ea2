"""The detection benchmark from the command line: results told and drawn again."""

import sys
from dataclasses import replace

import pytest
from benchmarks.detection import results
from benchmarks.detection.__main__ import main
from benchmarks.detection.tally import FaultRow, HealthyRow, Tally

FOUND = FaultRow(
    "gradient-x2",
    "clouds",
    4,
    "every step",
    False,
    runs=2,
    injected=2,
    readings=[20, 30],
    steps=[400, 600],
    right_ranks=2,
    right_causes=2,
    said={"UN501": 2},
)
HEALTHY = HealthyRow("texts", 4, "every step", False, runs=1, steps=2000, manuals={"Gradient Explosion": 3})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "detection"


def kept(folder, *faults, healthy=HEALTHY):
    results.save(Tally("python -m benchmarks.detection --short", {"torch": "2"}, list(faults), [healthy]), folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("banana",), "banana"),
        (("--processes", "0"), "Write: --processes 2"),
        (("--processes", "two"), "two"),
        (("--only", "some"), "some"),
        (("--redraw", "--out", "nowhere"), "python -m benchmarks.detection --out nowhere"),
    ],
)
def test_bad_input_gives_one_line_and_2(arguments, words, folder, capsys):
    assert main([*arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_results_that_cannot_be_read(folder, capsys):
    folder.mkdir()
    (folder / results.FILE).write_text("{")
    assert main(["--redraw"]) == 2
    assert "Make them with" in capsys.readouterr().err


def test_results_are_told_and_drawn_again(folder, capsys):
    pytest.importorskip("matplotlib")
    kept(folder, FOUND)
    assert main(["--redraw"]) == 0
    out = capsys.readouterr().out
    assert "gradient-x2     2      2    500        25       30    40      2/2         2/2           0    2/2" in out
    assert "0 critical findings in 2,000 healthy steps" in out
    assert "1,500   gradient norm (GSS) above 2 times" in out
    assert "Drawn: detection/delays.svg, detection/confusion.svg" in out
    assert sorted(path.name for path in folder.iterdir()) == ["confusion.svg", "delays.svg", results.FILE]


def test_without_matplotlib_results_are_told_all_the_same(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    kept(folder, FOUND)
    assert main(["--redraw"]) == 0
    out = capsys.readouterr().out
    assert "gradient-x2" in out
    assert "pip install matplotlib" in out


@pytest.mark.parametrize(
    ("faults", "healthy", "words"),
    [
        ((replace(FOUND, injected=1),), HEALTHY, "gradient-x2: the fault was not injected"),
        ((replace(FOUND, readings=[20]),), HEALTHY, "gradient-x2, clouds, 4 workers: not found"),
        ((replace(FOUND, workers=2, wrong_rank=1),), HEALTHY, "somebody was named of two workers"),
        ((FOUND,), replace(HEALTHY, criticals=1), "texts: a critical finding on a healthy run"),
    ],
)
def test_what_no_benchmark_may_show_is_said_and_gives_1(faults, healthy, words, folder, capsys):
    kept(folder, *faults, healthy=healthy)
    assert main(["--redraw"]) == 1
    assert words in capsys.readouterr().out


def test_a_faint_fault_may_be_missed(folder, capsys):
    kept(folder, replace(FOUND, fault="gradient-x1.1", readings=[]))
    assert main(["--redraw"]) == 0


def test_results_come_back_as_they_were_kept(folder):
    kept(folder, FOUND, replace(FOUND, real=True))
    tally = results.load(folder)
    assert (tally.faults, tally.healthy) == ([FOUND, replace(FOUND, real=True)], [HEALTHY])
    assert (tally.command, tally.versions) == ("python -m benchmarks.detection --short", {"torch": "2"})
