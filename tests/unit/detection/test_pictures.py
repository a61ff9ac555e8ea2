"""The pictures of the benchmark: what is in them, and that they come out the same twice."""

import re
import sys

import pytest
from benchmarks.detection.pictures import CONFUSION, DELAYS, draw
from benchmarks.detection.tally import FaultRow, HealthyRow, Tally

pytest.importorskip("matplotlib")


def row(fault, code, found=3, runs=4, schedule="every step", **fields):
    said = {code: found, "-": runs - found}
    counts = {"right_ranks": found, "right_causes": found, "said": {code: n for code, n in said.items() if n}, **fields}
    readings = [10 + number for number in range(found)]
    return FaultRow(fault, "clouds", 4, schedule, False, runs=runs, injected=runs, readings=readings, **counts)


def tally(*rows, healthy=()):
    return Tally("python -m benchmarks.detection", {}, list(rows), list(healthy))


USUAL = tally(
    row("gradient-x2", "UN501"),
    row("gradient-x2", "UN501", found=2, schedule="default, from step 700"),
    row("wrong-labels-50", "UN105", found=4),
    row("bit-10", "UN501", found=0, runs=5),
    row("underflow", "UN402", found=4, right_causes=1),
    healthy=[HealthyRow("texts", 4, "every step", False, runs=200, steps=1000, warnings=1, said={"UN408": 1})],
)


def words(path):
    """All texts of an SVG in their order: they are text, not outlines."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


@pytest.fixture
def drawn(tmp_path):
    assert draw(USUAL, tmp_path) == [DELAYS, CONFUSION]
    return tmp_path


def test_delays(drawn):
    told = words(drawn / DELAYS)
    for text in ("gradient-x2", "default schedule, from 700", "wrong-labels-50", "one worker's data", "all workers"):
        assert text in told
    assert told.count("3/4") == 1
    assert (told.count("3/3"), told.count("4/4"), told.count("1/4")) == (2, 5, 1)
    assert {"25%", "50%"} <= set(told)


def test_of_a_harmless_fault_silence_is_told(drawn):
    told = words(drawn / DELAYS)
    assert "silent 5/5" in told
    assert "100%" not in told


def test_groups_come_in_their_order(drawn):
    told = words(drawn / DELAYS)
    groups = ["one worker's computation", "one worker's data", "all workers"]
    assert [text for text in told if text in groups] == groups


def test_confusion(drawn):
    told = words(drawn / CONFUSION)
    for text in ("gradient-x2", "UN501 outlier-worker", "UN408 dispersion-spike", "nothing", "nothing (healthy)"):
        assert text in told
    assert [text for text in told if re.fullmatch(r"[<>&;lgt]*\d+", text)] == [
        *("62", "38"),
        *("100", "100", "100"),
        *("&lt;1", "&gt;99"),
    ]


def test_the_same_results_give_the_same_files_on_white(drawn, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    draw(USUAL, again)
    for name in (DELAYS, CONFUSION):
        assert (again / name).read_bytes() == (drawn / name).read_bytes()
        background = re.search(r'<g id="patch_1">\s*<path [^>]*style="([^"]*)"', (drawn / name).read_text())
        assert background[1].startswith("fill: #ffffff")


def test_runs_that_were_all_found_and_faults_that_exact_evidence_tells(tmp_path):
    draw(tally(row("stale-weights", "UN301", found=4, right_causes=4)), tmp_path)
    told = words(tmp_path / DELAYS)
    assert "told by exact evidence" in told
    assert not any("%" in text for text in told)
    assert "nothing (healthy)" not in words(tmp_path / CONFUSION)


def test_nothing_is_written_where_there_is_nothing_to_draw_or_to_draw_with(tmp_path, monkeypatch):
    assert draw(tally(), tmp_path) == []
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert draw(USUAL, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
