"""`unisono batches`: what stands out is listed, what is usual is not."""

import json
import math
import random

import pytest

from unisono.cli import main as cli
from unisono.records import AttemptRecord, BatchRecord, RunRecord, StepRecord, WorkerFacts
from unisono.records.runfile import RunWriter
from unisono.show.analysis.unusual_batches import unusual_batches


def steps(count=200, workers=4, seed=0, **changes):
    """Losses that fall and scatter; `changes` maps `loss_120_2` or `norm_120_2` to a value."""
    draw = random.Random(seed)
    for step in range(count):
        losses = [3 * 0.99**step + draw.gauss(0, 0.1) for _ in range(workers)]
        norms = [math.exp(draw.gauss(0, 0.2)) for _ in range(workers)]
        for worker in range(workers):
            losses[worker] = changes.get(f"loss_{step}_{worker}", losses[worker])
            norms[worker] = changes.get(f"norm_{step}_{worker}", norms[worker])
        heard = step % 2 == 0
        norm_W = tuple(norms) if heard else ()
        samples = (8,) * workers
        yield StepRecord(1, step, 1.5, heard=heard, loss_W=tuple(losses), norm_W=norm_W, samples_W=samples)


def places(found):
    return [(one.step, one.rank, one.what) for one in found]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_usual_batches_do_not_stand_out(seed, workers):
    assert unusual_batches(steps(1000, workers, seed), top=20) == []


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"loss_120_2": 9.0}, (120, 2, "loss")),
        ({"loss_120_2": -5.0}, (120, 2, "loss")),
        ({"norm_120_1": 1000.0}, (120, 1, "norm")),
        ({"loss_120_3": math.nan}, (120, 3, "non-finite")),
        ({"loss_3_3": math.inf}, (3, 3, "non-finite")),
    ],
)
def test_a_batch_far_off_stands_out(change, place):
    (found,) = unusual_batches(steps(**change), top=20)
    assert places([found]) == [place]
    assert found.samples == 8
    assert found.peers == pytest.approx(3 * 0.99 ** place[0], abs=0.3)


def test_with_two_workers_and_with_one():
    assert places(unusual_batches(steps(workers=2, loss_120_1=9.0), top=20))[0] == (120, 1, "loss")
    assert places(unusual_batches(steps(workers=1, loss_120_0=9.0), top=20)) == [(120, 0, "loss")]


def test_a_loss_that_rises_everywhere_is_no_batch_s_fault():
    assert unusual_batches(steps(**{f"loss_120_{worker}": 9.0 for worker in range(4)}), top=20) == []


def test_steps_that_are_broken_everywhere_are_left_out():
    poisoned = {f"loss_{step}_{worker}": math.nan for step in range(121, 200) for worker in range(4)}
    assert places(unusual_batches(steps(loss_120_2=math.nan, **poisoned), top=20)) == [(120, 2, "non-finite")]
    alone = {f"loss_{step}_0": math.nan for step in range(120, 200)}
    assert places(unusual_batches(steps(workers=1, **alone), top=20)) == [(120, 0, "non-finite")]


def test_an_overflow_of_the_loss_scaler_is_left_out():
    skipped = StepRecord(1, 0, 1.5, skipped=True, loss_W=(1.0, 1.0), finite_W=(True, False), nonfinite_W=(0, 3))
    taken = StepRecord(1, 0, 1.5, loss_W=(1.0, 1.0), finite_W=(True, False))
    assert unusual_batches([skipped], top=20) == []
    assert places(unusual_batches([taken], top=20)) == [(0, 1, "non-finite")]


def test_an_attempt_starts_afresh():
    again = [StepRecord(2, step, 1.5, loss_W=(50.0 + step % 3, 51.0)) for step in range(15)]
    assert unusual_batches([*steps(workers=2), *again], top=20) == []


def test_the_furthest_off_come_first_and_no_more_than_asked_for():
    losses = {f"loss_{100 + 10 * nth}_0": 9.0 + 10 * nth for nth in range(5)}
    found = unusual_batches(steps(**losses), top=3)
    assert [one.step for one in found] == [140, 130, 120]


def test_ranks_are_those_of_the_launcher_and_indices_those_that_were_kept():
    workers = tuple(WorkerFacts(10 + worker, "host", 1, "cpu") for worker in range(4))
    kept = BatchRecord(1, 120, 1.5, 12, 9.0, (5, None, 7))
    noted = BatchRecord(1, 40, 1.5, 10, 3.0, (1, 2))
    records = [AttemptRecord(1, 1.5, 4, 0, workers), *steps(loss_120_2=9.0), noted, kept]
    first, second = unusual_batches(records, top=20)
    assert (first.rank, first.what, first.indices) == (12, "loss", (5, None, 7))
    assert (second.step, second.rank, second.what, second.loss, second.indices) == (40, 10, "kept", 3.0, (1, 2))


@pytest.fixture
def run(tmp_path):
    writer = RunWriter(tmp_path / "run")
    writer.write(RunRecord(1, "r", 1.5, "", ""))
    for record in steps(loss_120_2=9.0, loss_150_1=math.nan):
        writer.write(record)
    writer.write(BatchRecord(1, 120, 1.5, 2, 9.0, tuple(range(30))))
    writer.close()
    return str(tmp_path / "run")


def test_the_table(run, capsys):
    assert cli.main(["batches", run]) == 0
    head, first, second, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "rank", "what", "loss", "peers", "off", "samples", "indices"]
    assert first.split()[:4] == ["150", "1", "non-finite", "nan"]
    assert second.split()[:4] == ["120", "2", "loss", "9"]
    assert second.endswith("8  0 1 2 3 4 5 and 24 more")


def test_json_is_strict_and_whole(run, capsys):
    assert cli.main(["batches", run, "--json", "--top", "2"]) == 0
    first, second = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["batches"]
    assert (first["loss"], first["off"], first["samples"]) == ("nan", "inf", 8)
    assert (second["step"], second["rank"], second["indices"]) == (120, 2, list(range(30)))


def test_a_quiet_run(tmp_path, capsys):
    writer = RunWriter(tmp_path)
    writer.write(RunRecord(1, "r", 1.5, "", ""))
    assert cli.main(["batches", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no batch stood out\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "required: RUN"),
        (("none",), "Found nothing"),
        (("run", "--top", "0"), "--top 20"),
        (("run", "--top", "x"), "x"),
    ],
)
def test_bad_input_gives_one_line_and_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["batches", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_a_file_that_is_no_run(tmp_path, capsys):
    (tmp_path / "text").write_text("hello\n")
    assert cli.main(["batches", str(tmp_path / "text")]) == 2
    assert "Found 1 unreadable lines" in capsys.readouterr().err
