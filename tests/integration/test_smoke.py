"""The first steps of real jobs: a verdict, and no process left behind."""

import sys
import tempfile

import pytest

from launch import SCRIPTS, launch, torchrun
from unisono.records.runfile import read_run
from unisono.testing import run_script

LOADER = SCRIPTS / "loader.py"


@pytest.mark.slow
def test_a_healthy_job_is_stopped_and_leaves_nothing_behind(tmp_path):
    smoke = [sys.executable, "-m", "unisono", "smoke", "--steps", "60", "--out", tmp_path / "run", "--"]
    outcome = launch([*smoke, *torchrun(2, LOADER)], cwd=tmp_path)
    assert outcome.returncode == 0, outcome
    assert b"epoch" not in outcome.stdout, outcome
    assert outcome.stdout.decode().splitlines()[-1] == f"run: {tmp_path / 'run'}"
    assert b"epoch 0 loss" in outcome.stderr, outcome
    assert 60 <= len(read_run(tmp_path / "run").steps) < 3200


@pytest.mark.slow
def test_a_job_that_fails_is_not_healthy(tmp_path):
    command = [sys.executable, "-m", "unisono", "smoke", "--", *torchrun(2, SCRIPTS / "failing.py")]
    outcome = launch(command, cwd=tmp_path)
    assert outcome.returncode == 1, outcome
    assert outcome.stdout.startswith(b"the command failed by itself with exit code 1 after 5 steps"), outcome


@pytest.mark.slow
def test_a_script_in_a_users_test_suite(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outcome = run_script(LOADER, workers=2, steps=40)
    outcome.assert_healthy()
    assert read_run(outcome.run_dir).attempts[0].world == 2
    assert len(read_run(outcome.run_dir).steps) >= 40
