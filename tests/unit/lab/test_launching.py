"""How the lab starts its scripts, and what it shows and says meanwhile."""

import os
import socket
import sys
import time
from pathlib import Path

import pytest
from benchmarks.detection import real_runs

from unisono.common.errors import UserError
from unisono.lab import launching
from unisono.lab.launching import follow, fork_ranks, free_port, torchrun


def python(code):
    return [sys.executable, "-c", code]


def test_every_line_is_progress(capfd):
    follow(python("print('1/2'); print('2/2')"), "honest: run")
    assert capfd.readouterr().err == "honest: run 1/2\nhonest: run 2/2\n"


def test_a_job_that_complains_a_lot_is_not_held_up(capfd):
    follow(python("import sys; sys.stderr.write('x' * 10**6); print('1/1')"), "honest: run")
    assert capfd.readouterr().err == "honest: run 1/1\n"


def test_a_failure_is_told_with_the_last_complaint():
    with pytest.raises(UserError, match="exit code 3: out of luck"):
        follow(python("import sys; print('before\\nout of luck\\n', file=sys.stderr); sys.exit(3)"), "honest")


def test_each_rank_has_one_thread(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    file = tmp_path / "threads"
    follow(python(f"import os; open({str(file)!r}, 'w').write(os.environ['OMP_NUM_THREADS'])"), "honest")
    assert file.read_text() == "1"


def test_forked_ranks_know_who_they_are(tmp_path):
    def be_rank(rank):
        names = ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")
        (tmp_path / str(rank)).write_text(" ".join(os.environ[name] for name in names))

    fork_ranks(3, be_rank, tmp_path / "complaints")
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["0 3 1", "1 3 1", "2 3 1"]
    assert "RANK" not in os.environ


def children():
    """Of this process; those of other tests may live on."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_a_forked_rank_that_fails_ends_the_others(tmp_path):
    def be_rank(rank):
        if rank == 1:
            raise ValueError("out of luck")
        time.sleep(60)
        (tmp_path / "survived").touch()

    begun, before = time.monotonic(), children()
    with pytest.raises(UserError, match="Rank 1 of the training failed: ValueError: out of luck"):
        fork_ranks(2, be_rank, tmp_path / "complaints")
    assert time.monotonic() - begun < 30
    assert children() <= before


@pytest.fixture
def started(monkeypatch):
    commands = []
    monkeypatch.setattr(real_runs, "follow", lambda command, title: commands.append((command, title)))
    return commands


@pytest.mark.parametrize(("fault", "name"), [("sign-flip", "sign-flip"), (None, "honest")])
def test_one_job_trains_all_seeds(started, tmp_path, fault, name):
    folder = tmp_path / "new"
    assert real_runs.run_real(fault, 3, [4, 7], folder) == [folder / f"{name}-4", folder / f"{name}-7"]
    assert folder.is_dir()
    command = torchrun(3, real_runs.FAULTY_JOB, name, str(folder), "4", "7")
    assert started == [(command, f"{name}: 3 workers, run")]
    assert "--nproc-per-node=3" in command


def test_healthy_runs_are_those_that_were_left(started, tmp_path):
    (tmp_path / "attention-0").mkdir()
    (tmp_path / "attention-0" / "run.jsonl").touch()
    assert real_runs.healthy_steps(2, 100, tmp_path) == [tmp_path / "attention-0"]
    assert started == [(torchrun(2, real_runs.HEALTHY_JOB, str(tmp_path), "100", "0"), "healthy: 2 workers, step")]


@pytest.mark.parametrize("script", [real_runs.FAULTY_JOB, real_runs.HEALTHY_JOB])
def test_the_scripts_are_there(script):
    assert script.is_file()


def test_the_ranks_meet_at_a_port_that_no_outgoing_connection_gets(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        offers = iter([taken.getsockname()[1] - launching.LOWEST_PORT, 5, 6])
        monkeypatch.setattr(launching.secrets, "randbelow", lambda below: next(offers))
        assert free_port() in (launching.LOWEST_PORT + 5, launching.LOWEST_PORT + 6)
    monkeypatch.undo()
    assert all(launching.LOWEST_PORT <= free_port() < launching.FIRST_OUTGOING_PORT for _ in range(20))
