"""`unisono compare` on run files: words, table, numbers, and input that is no pair of runs."""

import json
import os
import re

import pytest

from unisono.cli import main as cli
from unisono.common import terminal
from unisono.records import AttemptRecord, EndRecord, FactsRecord, RunRecord, StepRecord, WorkerFacts
from unisono.records.runfile import RunWriter
from unisono.show.analysis.comparison import compare as compared
from unisono.show.analysis.run_digest import look_closely
from unisono.show.text.comparison_text import as_text

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
NUMBERS = "betas=0.9 eps=1e-08 weight_decay="


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name="a-run", shared=(), steps=60, started=1.0, decay="0.01", world=4, seconds=0.5):
    """A run in which the workers in `shared` read the same data."""
    writer = RunWriter(folder)
    writer.write(RunRecord(1, name, started, "train", "0.1"))
    workers = tuple(WorkerFacts(rank, "node", 100 + rank, "cpu") for rank in range(world))
    writer.write(AttemptRecord(1, started, world, 0, workers, parameters=1000, torch="2.6", launcher="node:1"))
    writer.write(FactsRecord(1, 0, started, "optimizer", same={"class": "SGD", "numbers": f"{NUMBERS}{decay}"}))
    same = tuple(shared[0] if worker in shared else worker for worker in range(world)) if shared else ()
    for step in range(steps):
        writer.write(
            StepRecord(
                *(1, step, started),
                heard=True,
                loss_mean=2.0 - step / 100,
                effective_workers=1.0 if shared else 3.0,
                step_W=(seconds,) * world,
                compared=world,
                fresh=True,
                same_content_W=same,
            )
        )
    writer.write(EndRecord(1, steps - 1, started, steps, steps, 0))
    writer.close()
    return str(folder)


@pytest.fixture
def pair():
    before = write("before", "bug", shared=(0, 1, 2, 3))
    return before, write("after", "fix", started=2.0, decay="0.1", seconds=0.6)


def compare(capsys, *arguments):
    code = cli.main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_it_looks_like_this(pair, capsys):
    assert compare(capsys, *pair) == (
        0,
        """\
fixed: UN101 is gone, checked over 60 steps

first   bug: 1 critical finding, wrong from the first step
second  fix: healthy: 60 steps, 4 workers, 4 checks passed, 28 not looked at

gone
UN101  Several workers load the same data               ranks 0-3   since step 0
       checked over 60 steps of the second run

steps 0 to 59, which both have; the numbers are means over the last half
                        first                       second
loss                       1.55 ██▇▇▆▆▆▅▅▄▄▃▃▃▂▂▁▁     1.55 ██▇▇▆▆▆▅▅▄▄▃▃▃▂▂▁▁
loss dispersion (std)   -                           -
gradient norm           -                           -
norm dispersion (cv)    -                           -
direction consistency   -                           -
expected from noise     -                           -
effective workers             1 ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁        3 ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁

effective workers       1 of 4 before, 3 of 4 now: 3 times
time per step           500 ms before, 600 ms now: 1.2 times

time of all workers in steps with a finding, first run
UN101, steps 0 to 59: 2 worker-minutes, 75 % lost: 3 of 4 workers repeated
  another's batch

the runs differ in    first              second
  optimizer: numbers  weight_decay=0.01  weight_decay=0.1
""",
        "",
    )


def test_a_fault_that_is_still_there_is_told_with_its_evidence(capsys):
    write("before", shared=(1, 3))
    write("after", shared=(0, 2), started=2.0)
    code, out, _ = compare(capsys, "before", "after/run.jsonl")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "not fixed: UN101 has moved from ranks 1, 3 to ranks 0, 2"
    at = lines.index("still there")
    assert lines[at + 1].split()[-6:] == ["ranks", "0,", "2", "since", "step", "0"]
    assert lines[at + 2] == "       ranks 1, 3 before, ranks 0, 2 now"
    assert "ranks 0 and 2 had equal batches" in lines[at + 3]
    assert lines[-1] == "more: unisono explain UN101"


def test_a_number_that_stayed_the_same_has_no_ratio(capsys):
    write("before")
    write("after", started=2.0)
    assert "\ntime per step           500 ms before, 500 ms now\n" in compare(capsys, "before", "after")[1]


def test_what_is_only_information_is_named(capsys, monkeypatch):
    from unisono.diagnose.rules.un101_duplicated_data import DuplicatedData

    original = DuplicatedData.report
    monkeypatch.setattr(DuplicatedData, "report", lambda *a, **k: original(*a, **(k | {"severity": "info"})))
    write("before", shared=(1, 3))
    write("after", started=2.0)
    out = compare(capsys, "before", "after")[1]
    assert out.startswith("both healthy")
    assert "\nonly information: UN101 in the first run\n" in out


def test_other_workers_call_for_care(capsys):
    write("before", shared=(0, 1))
    write("after", world=2, started=2.0)
    assert "\nwith care: the first run had 4 workers, the second 2\n" in compare(capsys, "before", "after")[1]


def test_json(pair, capsys):
    code, out, err = compare(capsys, *pair, "--json")
    content = json.loads(out, parse_constant=pytest.fail)
    assert (code, err) == (0, "")
    assert (content["verdict"], content["verdict_text"]) == ("fixed", "fixed: UN101 is gone, checked over 60 steps")
    assert (content["first"]["run"], content["second"]["verdict"]) == ("bug", "healthy")
    (change,) = content["changes"]
    assert (change["code"], change["status"], change["second"]) == ("UN101", "gone", None)
    assert change["first"]["ranks"] == [0, 1, 2, 3]
    assert content["common_steps"] == {"first": 0, "last": 59}
    assert content["numbers"]["loss_mean"] == {"first": 1.555, "second": 1.555, "ratio": 1.0}
    assert content["numbers"]["cos_mean"] == {"first": None, "second": None, "ratio": None}
    assert content["effective_workers"]["ratio"] == 3.0
    assert content["seconds_per_step"]["ratio"] == pytest.approx(1.2)
    assert [(loss["code"], loss["share"]) for loss in content["lost"]["first"]] == [("UN101", 0.75)]
    assert (content["lost"]["second"], content["cautions"]) == ([], [])
    assert [setting["fact"] for setting in content["settings"]] == ["numbers"]


def test_json_stays_strict_with_numbers_that_are_not_finite(capsys):
    for name, ratio in (("before", 1e-60), ("after", float("inf"))):
        writer = RunWriter(name)
        writer.write(RunRecord(1, "r", 1.0, "", ""))
        writer.write(StepRecord(1, 0, 1.0, loss_mean=ratio, loss_std=1e-60))
        writer.close()
    content = json.loads(compare(capsys, "before", "after", "--json")[1], parse_constant=pytest.fail)
    assert content["numbers"]["loss_mean"] == {"first": 1e-60, "second": None, "ratio": None}
    assert content["numbers"]["loss_std"]["ratio"] == 1.0


def test_runs_that_hold_nothing(capsys):
    for name in ("before", "after"):
        writer = RunWriter(name)
        writer.write(RunRecord(1, name, 1.0, "", ""))
        writer.close()
    code, out, _ = compare(capsys, "before", "after")
    assert (code, out.splitlines()[0]) == (
        0,
        "cannot tell: the first run is unheard: nothing was heard: no process with torch",
    )
    assert "which both have" not in out


@pytest.mark.parametrize("width", [40, 57, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    write("before", "n" * 200, shared=(0, 1, 2, 3), decay="9" * 100)
    write("after", "fix", shared=(1, 3))
    text = as_text(compared(look_closely("before"), look_closely("after")), width)
    assert max(map(len, text.splitlines())) <= width


def test_colour_changes_nothing_but_colour(pair):
    comparison = compared(*map(look_closely, pair))
    coloured = as_text(comparison, colour=True)
    assert coloured.startswith("\x1b[32mfixed: UN101 is gone, checked over 60 steps\x1b[0m\n")
    assert ESCAPE.sub("", coloured) == as_text(comparison)


def test_colour_is_for_terminals_only(pair, capsys, monkeypatch):
    assert "\x1b" not in compare(capsys, *pair)[1]
    monkeypatch.setattr(terminal, "_is_terminal", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[32mfixed" in compare(capsys, *pair)[1]


def test_text_from_a_run_cannot_steer_the_terminal(capsys):
    write("before", "\x1b[31mred", shared=(1, 3), decay="\x1b[1m1")
    write("after", "\x9bnasty\n", decay="\x1b]0;title\x07")
    out = compare(capsys, "before", "after")[1]
    assert all(character.isprintable() or character == "\n" for character in out)
    assert "[31mred: 1 critical finding" in out


def test_each_file_is_read_once(pair, monkeypatch, capsys):
    from unisono.show.analysis import scan_run

    opened, scan = [], scan_run.scan
    monkeypatch.setattr(scan_run, "scan", lambda path: opened.append(path) or scan(path))
    monkeypatch.setattr(scan_run, "read_run", pytest.fail)
    compare(capsys, *pair)
    assert opened == list(pair)


BAD_INPUT = {
    "nothing": ((), "required: RUN, RUN"),
    "one run": (("run",), "required: RUN"),
    "three runs": (("run", "other", "run"), "unrecognized arguments: run"),
    "missing": (("run", "none"), "Found nothing at `none`"),
    "missing first": (("none", "run"), "Found nothing at `none`"),
    "not a run": (("run", "text"), "1 unreadable lines"),
    "newer format": (("newer", "run"), "pip install -U unisono"),
    "the same": (("run", "run"), "Found the same one twice, `run`"),
    "the same by its file": (("run", "run/run.jsonl"), "Found the same one twice"),
    "the same by a link": (("link", "run"), "Found the same one twice"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_gives_one_line_and_2(arguments, words, capsys, place):
    write("run")
    write("other")
    os.symlink("run", "link")
    (place / "text").write_text("\x1b[31mhello\n")
    header = '{"type":"run","format":2,"run":"r","time":1.5,"script":"","unisono":""}\n'
    (place / "newer").write_text(header)
    code, out, err = compare(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert "unexpected" not in err
