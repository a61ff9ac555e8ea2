"""A rank that goes is named, and one that is not heard too: real processes, plain and under torchrun."""

import json
import re
from pathlib import Path

import pytest

from launch import forked, launch, torchrun
from unisono.cli.main import main
from unisono.records.runfile import read_run

JOB = Path(__file__).parent.parent / "jobs" / "departing.py"
EVERYBODY = -1
GOES = ("killed", "raised", "exited", "os-exit", "segfault", "terminated", "crashed-at-once")
UNHEARD = ("thread-dead", "thread-stuck", "never-attached")
IN_CI = [
    ("plain", 2, "killed", 1),
    ("plain", 2, "exited", 1),
    ("plain", 2, "os-exit", 0),
    ("plain", 2, "segfault", 1),
    ("plain", 2, "thread-dead", 0),
    ("plain", 2, "thread-stuck", 1),
    ("plain", 2, "never-attached", 1),
    ("plain", 4, "crashed-at-once", 3),
    ("torchrun", 2, "raised", 1),
    ("torchrun", 2, "terminated", 0),
]


def cases():
    """All ways of going, of rank 0 and of the last one, with two and four workers, plain and under torchrun."""
    for launcher in ("plain", "torchrun"):
        for workers in (2, 4):
            for way in (*GOES, *UNHEARD):
                for rank in (0, workers - 1):
                    if (way, rank) != ("never-attached", 0):
                        yield launcher, workers, way, rank


def went(folder, launcher, workers, way, rank):
    """What came of the job, and what is said of it."""
    start = forked if launcher == "plain" else torchrun
    command = [str(part) for part in start(workers, JOB, way, rank)]
    outcome = launch(command, env={"RESULTS": folder, "LEAVE_OTHERS": 1}, timeout=120)
    assert f"fired {way}".encode() in outcome.stdout, outcome
    return outcome


def told(folder, capsys):
    capsys.readouterr()
    main(["diagnose", str(folder / "run"), "--json"])
    return json.loads(capsys.readouterr().out)


def check(folder, capsys, launcher, workers, way, rank):
    outcome = went(folder, launcher, workers, way, rank)
    said = told(folder, capsys)
    assert said["verdict"] != "healthy", (said, outcome)
    code = "UN502" if way in GOES else "UN001"
    named = [finding["ranks"] for finding in said["findings"] if finding["code"] == code]
    assert named == [[rank]], (said["findings"], outcome)
    assert b"terminate called" not in outcome.stderr, outcome
    assert b"healthy" not in outcome.stderr, outcome
    others = [ranks for ranks in (finding["ranks"] for finding in said["findings"]) if ranks not in ([], [rank])]
    assert others == [], "somebody else was named"
    if way in GOES:
        assert outcome.returncode != 0
        assert f"rank {rank} ".encode() in outcome.stderr
    else:
        assert outcome.returncode == 0, outcome
        assert re.search(rb"not (been )?heard since step \d+", outcome.stderr), outcome
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "workers", "way", "rank"), IN_CI)
def test_who_goes_is_named(tmp_path, capsys, launcher, workers, way, rank):
    check(tmp_path, capsys, launcher, workers, way, rank)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [EVERYBODY, 0])
def test_a_rank_that_ends_with_an_exit_code_has_not_finished(tmp_path, capsys, rank):
    """Long enough to be judged by all else."""
    command = forked(2, JOB, "exited", rank, 45)
    outcome = launch(command, env={"RESULTS": tmp_path, "LEAVE_OTHERS": 1})
    said = told(tmp_path, capsys)
    told_first = b"unisono: broken: " if rank == EVERYBODY else b"; "
    assert told_first + b"the job ended with exit code 3 after step 44" in outcome.stderr, outcome
    assert (said["verdict"], said["heard"]["ended"]) == ("broken" if rank == EVERYBODY else "critical", "crashed")
    assert [one["ranks"] for one in said["findings"]] == ([] if rank == EVERYBODY else [[0]])


@pytest.mark.soak("deaths")
@pytest.mark.parametrize(("launcher", "workers", "way", "rank"), list(cases()))
@pytest.mark.parametrize("time", range(5))
def test_who_goes_is_named_each_time(tmp_path, capsys, launcher, workers, way, rank, time):
    check(tmp_path, capsys, launcher, workers, way, rank)


@pytest.mark.slow
def test_a_job_in_which_nobody_goes_loses_nobody_and_ends_soon(tmp_path, capsys):
    outcome = launch(forked(2, JOB, "none", 0), env={"RESULTS": tmp_path})
    assert outcome.returncode == 0, outcome
    assert told(tmp_path, capsys)["findings"] == [], outcome
    assert [end.ended for end in read_run(tmp_path / "run").ends] == ["finished"]
    seconds = [float(found) for found in re.findall(rb"closed ([\d.]+)", outcome.stdout)]
    assert len(seconds) == 2
    assert max(seconds) < 1.0, outcome


@pytest.mark.slow
@pytest.mark.parametrize("way", ["gone", "late"])
def test_the_end_of_a_job_waits_a_second_at_most_for_a_rank_that_says_nothing(tmp_path, capsys, way):
    """Rank 1 has trained to the end, too: nobody misses it."""
    went(tmp_path, "plain", 2, f"{way}-at-the-end", 1)
    run = read_run(tmp_path / "run")
    assert [end.ended for end in run.ends] == ["finished"]
    assert told(tmp_path, capsys)["findings"] == []
    assert run.ends[0].time - run.steps[-1].time < 1.5
