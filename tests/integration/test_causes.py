"""Real jobs whose cause was once told wrongly, or more than once."""

import pytest

from launch import SCRIPTS, forked, launch, under_unisono
from unisono.show.analysis.checkup import examine

pytestmark = pytest.mark.slow


def told_of(run):
    """Everything above `info`."""
    return [finding for finding in examine(run).as_dict()["findings"] if finding["severity"] != "info"]


def causes(finding):
    return [cause["slug"] for cause in finding["causes"]]


def test_a_module_wrapped_again_and_again_is_one_run_and_one_report(tmp_path):
    run = tmp_path / "run"
    outcome = launch(under_unisono(forked(2, SCRIPTS / "rewrapped.py"), "--out", run), cwd=tmp_path)
    assert outcome.returncode == 0, outcome
    (found,) = told_of(run)
    assert (found["code"], causes(found)[0]) == ("UN302", "wrapper-stripped")
    assert [path.name for path in run.iterdir() if path.is_dir()] == []
    lines = outcome.stderr.decode().splitlines()
    assert sum("listening to 2 workers" in line for line in lines) == 1
    assert sum("since step" in line and line.startswith("unisono: UN") for line in lines) == 1
    assert len(lines) < 40


@pytest.mark.parametrize("kind", ["healthy", "faulty"])
def test_epochs_that_come_again_do_not_hide_a_worker_apart(kind, tmp_path):
    run = tmp_path / "run"
    command = forked(4, SCRIPTS / "stale_epochs.py", kind)
    outcome = launch(under_unisono(command, "--out", run), cwd=tmp_path)
    assert outcome.returncode == 0, outcome
    found = {finding["code"]: finding["ranks"] for finding in told_of(run)}
    assert found == {"UN103": [], **({"UN501": [1]} if kind == "faulty" else {})}
