"""Trouble on one rank never hangs or fails training, and the run file stays true."""

import json
import math
import time
from pathlib import Path

import pytest

from launch import launch, torchrun
from unisono.records.runfile import read_run, scan

JOB = Path(__file__).parent.parent / "jobs" / "trouble.py"


def started(tmp_path, workers, name, *options, timeout=90):
    command = torchrun(workers, *options, JOB, name)
    return launch(command, env={"RESULTS": tmp_path}, timeout=timeout)


def result(tmp_path, name, rank):
    return json.loads((tmp_path / f"{name}.{rank}.json").read_text())


def test_attach_forgotten_on_a_rank(tmp_path):
    outcome = started(tmp_path, 3, "forgotten")
    assert outcome.returncode == 0, outcome
    assert b"call attach on every rank" in outcome.stderr, outcome
    assert outcome.stderr.count(b"ranks [1] are not heard") == 1, outcome
    records = read_run(tmp_path / "run").timeline()
    assert len(records) == 60
    assert all(record.loss_W[1] is None and record.loss_W[0] is not None for record in records)
    assert len({result(tmp_path, "weights", rank) for rank in range(3)}) == 1


@pytest.mark.slow
def test_ranks_of_a_group_are_named_as_the_launcher_does(tmp_path):
    outcome = started(tmp_path, 4, "forgotten_in_a_group")
    assert outcome.returncode == 0, outcome
    assert b"ranks [3] are not heard" in outcome.stderr, outcome
    assert b"Going on with ranks [2] alone" in outcome.stderr, outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trace"), [("stuck", "slept"), pytest.param("skips_one", "skipped", marks=pytest.mark.soak("inert"))]
)
def test_directions_are_lost_and_come_back(tmp_path, name, trace):
    outcome = started(tmp_path, 2, name)
    assert outcome.returncode == 0, outcome
    assert [result(tmp_path, trace, rank) for rank in range(2)] == [0, 1]
    records = read_run(tmp_path / "run").timeline()
    assert all(None not in record.loss_W for record in records)
    with_directions = [record.step for record in records if record.cos_mean is not None]
    assert len(with_directions) < len(records), "nothing was lost, so nothing was tested"
    assert [record for record in records if record.heard][-1].cos_mean is not None, outcome


@pytest.mark.slow
def test_directions_never_mix_steps(tmp_path):
    """Two workers' mean pairwise cosine is known exactly: sketches of different steps would not agree with it."""
    assert started(tmp_path, 2, "skips_one").returncode == 0
    compared = 0
    for record in read_run(tmp_path / "run").timeline():
        if record.cos_mean is not None and record.cos_weighted is not None:
            compared += 1
            assert record.cos_mean == pytest.approx(record.cos_weighted, abs=0.02)
    assert compared > 20


def test_sigterm_leaves_last_steps_and_dies(tmp_path):
    outcome = started(tmp_path, 2, "terminated")
    assert outcome.returncode != 0
    for rank in range(2):
        steps = [record.step for _, record in scan(tmp_path / "run" / f"rank-{rank}.jsonl")]
        assert steps[0] == 0
        assert steps[-1] >= 49
    assert len(read_run(tmp_path / "run").timeline()) >= 50


def test_crash_leaves_last_steps(tmp_path):
    outcome = started(tmp_path, 2, "crashes")
    assert outcome.returncode == 1
    assert b"RuntimeError: as planned" in outcome.stderr
    steps = [record.step for _, record in scan(tmp_path / "run" / "rank-1.jsonl")]
    assert steps[-1] == 30


def test_restart_continues_the_run(tmp_path):
    outcome = started(tmp_path, 2, "restarts", "--max-restarts=1")
    assert outcome.returncode == 0, outcome
    run = read_run(tmp_path / "run")
    assert [attempt.attempt for attempt in run.attempts] == [1, 2]
    assert [attempt.first_step for attempt in run.attempts] == [0, 20]
    assert [record.step for record in run.timeline()] == list(range(60))
    assert {record.attempt for record in run.timeline() if record.step >= 20} == {2}


@pytest.mark.slow
def test_a_suspicion_starts_a_burst_on_all_ranks(tmp_path):
    outcome = started(tmp_path, 2, "suspicion")
    assert outcome.returncode == 0, outcome
    records = read_run(tmp_path / "run").timeline()
    assert records[10].finite_W == (True, False)
    assert math.isnan(records[10].loss_W[1])
    heard = [record.step for record in records if record.heard]
    burst = [step for step in heard if step % 100]
    assert 19 <= burst[0] <= 150, "announced ahead"
    assert burst == [step for step in range(burst[0], burst[0] + 64) if step % 100]
    assert all(None not in record.norm_W and record.cos_mean is not None for record in records if record.heard)


def test_without_a_network_everything_but_directions_goes_on(tmp_path):
    outcome = started(tmp_path, 2, "no_network")
    assert outcome.returncode == 0, outcome
    assert outcome.stderr.count(b"GLOO_SOCKET_IFNAME") == 1, outcome
    records = read_run(tmp_path / "run").timeline()
    assert len(records) == 40
    assert all(None not in record.norm_W and record.cos_weighted is not None for record in records)
    assert all(record.cos_mean is None for record in records)


@pytest.mark.serial
def test_a_rank_that_leaves_early_is_not_held_back(tmp_path):
    began = time.monotonic()
    assert started(tmp_path, 2, "leaves_early").returncode != 0
    assert time.monotonic() - began < 30, "waited for the other rank"


@pytest.mark.slow
def test_short_steps_do_not_confuse_the_ranks(tmp_path):
    outcome = started(tmp_path, 2, "hurried")
    assert outcome.returncode == 0, outcome
    run = read_run(tmp_path / "run")
    assert len(run.timeline()) == 2500
    assert [note.text for note in run.notes] == []
    heard = [record for record in run.timeline() if record.heard and record.step >= 100]
    assert heard
    assert all(None not in record.norm_W for record in heard)


def test_sub_groups_and_two_models(tmp_path):
    outcome = started(tmp_path, 4, "sub_groups")
    assert outcome.returncode == 0, outcome
    runs = {path.parent.relative_to(tmp_path / "run") for path in (tmp_path / "run").rglob("run.jsonl")}
    assert {str(path) for path in runs} == {".", "ranks-2-3", "model-2"}
    workers = {str(path): [w.rank for w in read_run(tmp_path / "run" / path).attempts[0].workers] for path in runs}
    assert workers == {".": [0, 1], "ranks-2-3": [2, 3], "model-2": [0, 1, 2, 3]}
    for path in runs:
        records = read_run(tmp_path / "run" / path).timeline()
        assert len(records) == 12
        assert all(record.heard and record.cos_mean is not None for record in records)
