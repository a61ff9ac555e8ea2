"""`unisono scaling`: words, table, bars, numbers and a picture."""

import json
import math
import random

import pytest

from unisono.cli import main as cli
from unisono.records import AttemptRecord, RunRecord, StepRecord, WorkerFacts
from unisono.records.finding import Finding
from unisono.records.runfile import RunWriter
from unisono.show.analysis.scaling import Estimate, Outlook
from unisono.show.text.scaling_text import caution

NOISE_SCALE = 20


def steps(count=200, workers=4, **fields):
    """A signal of length 1 along one of 50 axes, and noise along all of them."""
    draw, deviation = random.Random(0), math.sqrt(NOISE_SCALE / 50)
    for step in range(count):
        rows = [[(axis == 0) + draw.gauss(0, deviation) for axis in range(50)] for _ in range(workers)]
        mean = [sum(column) / workers for column in zip(*rows, strict=True)]
        yield StepRecord(
            attempt=1,
            step=step,
            time=1.5,
            heard=True,
            step_W=(0.5,) * workers,
            finite_W=(True,) * workers,
            norm_W=tuple(math.hypot(*row) for row in rows),
            grad_norm=math.hypot(*mean),
            samples_W=(16,) * workers,
            compared=workers,
            fresh=True,
            **fields,
        )


def written(folder, records, workers=4):
    writer = RunWriter(folder)
    writer.write(RunRecord(1, "r", 1.5, "", ""))
    facts = tuple(WorkerFacts(rank, "host", 1, "cpu") for rank in range(workers))
    writer.write(AttemptRecord(1, 1.5, workers, 0, facts))
    for record in records:
        writer.write(record)
    writer.close()
    return str(folder)


@pytest.fixture
def run(tmp_path):
    return written(tmp_path / "run", steps())


def test_the_verdict_comes_first_then_the_numbers(run, capsys):
    assert cli.main(["scaling", run]) == 0
    out = capsys.readouterr().out
    assert out.startswith("More workers pay: twice as many would need 57 % (56 to 59)")
    lines = out.splitlines()
    assert any(line.startswith("critical batch size") and "the batch is 64 now" in line for line in lines)
    rows = [line.split()[:3] for line in lines if line.split()[:1] in (["now"], ["2x"], ["4x"], ["8x"])]
    assert rows == [["now", "4", "64"], ["2x", "8", "128"], ["4x", "16", "256"], ["8x", "32", "512"]]
    assert "in 100 readings, steps 100 to 199" in out
    assert "Time of all workers" not in out
    assert "With care" not in out


def test_the_bars_have_the_critical_size_in_its_place(run, capsys):
    cli.main(["scaling", run])
    bars = [line for line in capsys.readouterr().out.splitlines() if "█" in line]
    remarks = [line.rpartition("%")[2].strip() for line in bars]
    assert remarks == ["now", "", "", "critical batch size", ""]
    assert [line.count("█") for line in bars] == sorted((line.count("█") for line in bars), reverse=True)


def test_json(run, capsys):
    assert cli.main(["scaling", run, "--json"]) == 0
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    scale, critical = content["noise_scale"], content["critical_batch"]
    assert scale["low"] <= NOISE_SCALE <= scale["high"]
    assert critical == {end: pytest.approx(16 * value) for end, value in scale.items()}
    assert [row["workers"] for row in content["outlook"]] == [4, 8, 16, 32]
    assert (content["missing"], content["lost"], content["readings"]) == (None, [], 100)


def test_json_is_strict_where_there_is_no_end(tmp_path, capsys):
    silent = [StepRecord(1, step, 1.5, True, norm_W=(1.0,) * 4, grad_norm=0.4) for step in range(40)]
    assert cli.main(["scaling", written(tmp_path / "run", silent), "--json"]) == 0
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (content["noise_scale"]["high"], content["critical_batch"]) == ("inf", None)


def test_what_is_missing_is_said_and_no_failure(tmp_path, capsys):
    assert cli.main(["scaling", written(tmp_path / "run", steps(10))]) == 0
    out = capsys.readouterr().out
    assert out == "No estimate: it takes 20 readings of the gradients of all workers; there are 10.\n"
    assert cli.main(["scaling", written(tmp_path / "none", [])]) == 0
    assert "there are 0" in capsys.readouterr().out
    assert cli.main(["scaling", written(tmp_path / "one", steps(30, 1), 1), "--json"]) == 0
    assert "one worker alone" in json.loads(capsys.readouterr().out)["missing"]


def test_duplicated_data_are_counted_as_lost(tmp_path, capsys):
    run = written(tmp_path / "run", steps(40, same_content_W=(0, 0, 0, 0)))
    assert cli.main(["scaling", run]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No estimate: workers had equal batches in 40 readings")
    assert "UN101, steps 0 to 39: 1.33 worker-minutes, 75 % lost: 3 of 4 workers repeated" in out
    cli.main(["scaling", run, "--json"])
    (lost,) = json.loads(capsys.readouterr().out)["lost"]
    assert (lost["code"], lost["worker_seconds"], lost["share"]) == ("UN101", 80.0, 0.75)


def test_numbers_taken_with_a_fault_are_called_so(tmp_path, capsys):
    run = written(tmp_path / "run", steps(audits=("weights",), parts=1, weights_W=(0, 0, 0, 3)))
    assert cli.main(["scaling", run]) == 0
    out = capsys.readouterr().out
    assert "With care: this was measured with a fault in the run" in out
    assert "worker-minutes, all of it in doubt" in out


@pytest.mark.parametrize(
    ("severity", "state", "steps", "told"),
    [
        ("warning", "open", (0, 10), True),
        ("critical", "resolved", (0, 150), True),
        ("critical", "resolved", (0, 99), False),
        ("critical", "open", (200, 250), False),
        ("info", "open", (0, 150), False),
    ],
)
def test_which_faults_call_for_care(severity, state, steps, told):
    finding = Finding("UN301", "", "", severity, state, *steps, (), (), "", {}, (), (), None)
    found = Outlook(4, 100, 100, 199, None, Estimate(0.1, 0.1, 0.1))
    assert bool(caution(found, [finding])) is told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required: RUN"),
        (("none",), "Found nothing"),
        (("run", "--plot", "plot.svg"), "unrecognized arguments"),
    ],
)
def test_bad_input_gives_one_line_and_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "run", steps(30))
    assert cli.main(["scaling", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_a_file_that_is_no_run(tmp_path, capsys):
    (tmp_path / "text").write_text("hello\n")
    assert cli.main(["scaling", str(tmp_path / "text")]) == 2
    assert "Found 1 unreadable lines" in capsys.readouterr().err
