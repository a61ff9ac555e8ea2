"""`unisono calibrate`: limits for the guard from a recorded run."""

import json
import math
import random
import re
from dataclasses import replace

import pytest

import unisono
from unisono.act.calibration import rounded_up
from unisono.cli import main as cli
from unisono.records import AttemptRecord, RunRecord, StepRecord, WorkerFacts
from unisono.records.runfile import RunWriter


def steps(count=2000, workers=4, attempt=1, first=0, seed=0, **fields):
    draw = random.Random(seed)
    for step in range(first, first + count):
        yield StepRecord(
            attempt=attempt,
            step=step,
            time=1.5,
            heard=True,
            loss_W=tuple(2 * math.exp(draw.gauss(0, 0.1)) for _ in range(workers)),
            finite_W=(True,) * workers,
            norm_W=(2.0,) * workers,
            grad_norm=math.exp(draw.gauss(0, 0.2)),
            **{"listening_cost": 0.04} | fields,
        )


def written(folder, records, workers=4):
    writer = RunWriter(folder)
    writer.write(RunRecord(1, "r", 1.5, "", ""))
    writer.write(AttemptRecord(1, 1.5, workers, 0, tuple(WorkerFacts(r, "host", 1, "cpu") for r in range(workers))))
    for record in records:
        writer.write(record)
    writer.close()
    return str(folder)


def changed(records, step, **fields):
    return [replace(record, **fields) if record.step == step else record for record in records]


def suggested(run, capsys):
    assert cli.main(["calibrate", run, "--json"]) == 0
    content = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return {one["name"]: one["value"] for one in content["suggestions"]}, content


def test_each_suggestion_stands_with_its_evidence(tmp_path, capsys):
    assert cli.main(["calibrate", written(tmp_path / "run", steps())]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Limits for the guard, from 2,000 readings of the gradient's norm, steps 0 to 1,999, 4 workers." in out
    assert re.search(r"clip 1\.\d max_grad_norm: 99 % of the norms of the last 1,000 readings \(steps 1,000 to", out)
    assert re.search(r"norm_spike 5 the highest ordinary norm was [01]\.\d+ times .* at step [\d,]+, in 2,000", out)
    assert "loss_spike 25 none stood out in 2,000 steps" in out
    assert "every 8 listening took 4 % of the step time with 2,000 of 2,000 steps heard" in out


def test_the_norm_to_clip_at_leaves_99_of_100_newer_steps_alone(tmp_path, capsys):
    records = list(steps(1000))
    found, _ = suggested(written(tmp_path / "run", records), capsys)
    newest = [record.grad_norm for record in records[500:]]
    assert 0.98 <= sum(norm <= found["clip"] for norm in newest) / len(newest) <= 1.0


def test_norms_that_only_clipping_knows_count_as_readings(tmp_path, capsys):
    records = [
        one if one.step % 20 == 0 else replace(one, heard=False, norm_W=(), grad_norm=None, clip_norm=one.grad_norm)
        for one in steps()
    ]
    records = changed(records, 1201, clip_norm=12.0)
    found, content = suggested(written(tmp_path / "run", records), capsys)
    assert content["readings"] == 2000
    assert 12 <= found["norm_spike"] <= 36


def test_a_wild_run_gets_higher_limits(tmp_path, capsys):
    calm = list(steps())
    wild = changed(calm, 1200, grad_norm=12.0)
    found, content = suggested(written(tmp_path / "run", wild), capsys)
    assert 12 <= found["norm_spike"] <= 36
    assert "at step 1,200" in next(one["evidence"] for one in content["suggestions"] if one["name"] == "norm_spike")


def test_a_loss_that_stood_out_raises_its_limit(tmp_path, capsys):
    records = changed(list(steps()), 1300, loss_W=(2.0, 2.0, 11.0, 2.0))
    found, content = suggested(written(tmp_path / "run", records), capsys)
    assert 100 <= found["loss_spike"] <= 200
    assert "at step 1,300" in next(one["evidence"] for one in content["suggestions"] if one["name"] == "loss_spike")


def test_spikes_and_what_is_not_finite_are_left_out(tmp_path, capsys):
    calm, _ = suggested(written(tmp_path / "calm", steps()), capsys)
    bad = changed(list(steps()), 700, grad_norm=5000.0)
    bad = changed(bad, 800, grad_norm=math.nan)
    bad = changed(bad, 900, loss_W=(2.0, math.inf, 2.0, 2.0), grad_norm=None)
    bad = changed(bad, 950, loss_W=(2.0, 500.0, 2.0, 2.0))
    found, content = suggested(written(tmp_path / "bad", bad), capsys)
    assert found == pytest.approx(calm, rel=0.1)
    assert content["left_out"] == "2 steps were extreme (first: 700); 2 steps were not finite (first: 800)"


def test_a_short_run_is_not_calibrated_below_the_defaults(tmp_path, capsys):
    found, _ = suggested(written(tmp_path / "run", steps(300)), capsys)
    assert (found["norm_spike"], found["loss_spike"]) == (10.0, 50.0)


@pytest.mark.parametrize("count", [0, 1, 99])
def test_too_short_a_run_gives_one_line_and_2(count, tmp_path, capsys):
    target = tmp_path / "guard.toml"
    assert cli.main(["calibrate", written(tmp_path / "run", steps(count)), "--write", str(target)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), target.exists()) == ("", 1, False)
    assert f"Found {count} in {count} steps" in err


def test_no_run_gives_one_line_and_2(tmp_path, capsys):
    assert cli.main(["calibrate", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_file_is_a_guard_with_the_evidence_beside_it(tmp_path, capsys):
    run, target = written(tmp_path / "run", steps()), tmp_path / "guard.toml"
    found, content = suggested(run, capsys)
    assert cli.main(["calibrate", run, "--write", str(target)]) == 0
    assert capsys.readouterr().out.endswith(f"written: {target}\n")
    asked = unisono.guard(target)
    for name in ("norm_spike", "loss_spike"):
        assert getattr(asked, name) == found[name]
    assert (asked.clip, asked.every) == (False, None)
    comments = " ".join(line.removeprefix("# ") for line in target.read_text().splitlines())
    assert all(one["evidence"] in comments for one in content["suggestions"])
    for name in ("clip", "[listening]", "every"):
        target.write_text(target.read_text().replace(f"# {name}", name))
    assert unisono.guard(target).clip == found["clip"]
    assert unisono.guard(target).every == found["every"]


def test_a_file_that_cannot_be_written_is_refused_before_the_run_is_read(tmp_path, capsys):
    (tmp_path / "file").write_text("no run at all")
    assert cli.main(["calibrate", str(tmp_path / "file"), "--write", str(tmp_path / "no" / "guard.toml")]) == 2
    assert "Make it first" in capsys.readouterr().err


def test_what_is_not_known_is_said(tmp_path, capsys):
    alone = written(tmp_path / "alone", steps(workers=1, listening_cost=None), workers=1)
    found, content = suggested(alone, capsys)
    assert set(found) == {"clip", "norm_spike"}
    assert len(content["unknown"]) == 2
    assert cli.main(["calibrate", alone, "--write", str(tmp_path / "guard.toml")]) == 0
    assert unisono.guard(tmp_path / "guard.toml").every is None


def test_an_attempt_takes_the_place_of_what_it_does_again(tmp_path, capsys):
    first = list(steps(1000))
    again = [*changed(first, 900, grad_norm=4.0), *steps(400, attempt=2, first=600, seed=1)]
    _, content = suggested(written(tmp_path / "run", again), capsys)
    clip = next(one["evidence"] for one in content["suggestions"] if one["name"] == "clip")
    assert "highest 4 " not in clip


@pytest.mark.parametrize(
    ("value", "up"), [(1.23, 1.3), (0.0512, 0.052), (130, 130), (131, 140), (9.99, 10), (2.0, 2.0), (0.0, 0.0)]
)
def test_rounding_up_to_two_digits(value, up):
    assert rounded_up(value) == pytest.approx(up)


def test_a_hundred_readings_are_enough(tmp_path, capsys):
    suggested(written(tmp_path / "run", steps(100)), capsys)


def test_harder_data_for_all_workers_raise_the_limit_which_counts_whatever_the_losses_do(tmp_path, capsys):
    records = list(steps())
    for step in range(1000, 1040):
        records[step] = replace(records[step], loss_W=(5.0,) * 4, grad_norm=60.0)
    found, content = suggested(written(tmp_path / "run", records), capsys)
    assert (found["norm_spike"], content["left_out"]) == (pytest.approx(96, abs=6), "")


@pytest.mark.parametrize("place", ["run", "run/run.jsonl", "link.toml"])
def test_a_guard_file_never_takes_the_place_of_its_run(tmp_path, monkeypatch, capsys, place):
    monkeypatch.chdir(tmp_path)
    run = written(tmp_path / "run", steps(200))
    (tmp_path / "link.toml").symlink_to(tmp_path / "run" / "run.jsonl")
    before = (tmp_path / "run" / "run.jsonl").read_bytes()
    assert cli.main(["calibrate", run, "--write", place]) == 2
    assert (tmp_path / "run" / "run.jsonl").read_bytes() == before
    assert "not" in capsys.readouterr().err
