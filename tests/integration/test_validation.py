"""A real job of two processes that overfits wrong labels, and its healthy twin."""

import json
from pathlib import Path

import pytest

from launch import forked, launch
from unisono.diagnose.engine import diagnose
from unisono.records.runfile import read_run, scan

JOB = Path(__file__).parent.parent / "jobs" / "validated.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    def train(kind):
        folder = tmp_path_factory.mktemp(kind)
        outcome = launch(forked(2, JOB, kind, folder / "run"), env={"RESULTS": folder})
        assert outcome.returncode == 0, outcome
        return folder, outcome.stderr.decode()

    return {kind: train(kind) for kind in ("noisy", "clean")}


def given(folder, rank):
    return json.loads((folder / f"given.{rank}.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noisy", "clean"])
def test_the_numbers_of_rank_0_are_in_the_file(trained, kind):
    folder, _ = trained[kind]
    run, numbers = read_run(folder / "run"), given(folder, 0)
    assert [record.validation for record in run.validations] == pytest.approx(numbers, rel=1e-8)
    assert numbers != given(folder, 1)
    steps_of_an_epoch = len(run.timeline()) // len(numbers)
    assert [record.step + 1 for record in run.validations] == [
        steps_of_an_epoch * (epoch + 1) for epoch in range(len(numbers))
    ]
    assert {record.rank for record in run.validations} == {0}


@pytest.mark.slow
def test_learning_wrong_labels_by_heart_is_found_and_its_healthy_twin_is_quiet(trained):
    folder, said = trained["noisy"]
    assert "UN412" in said
    found = {finding.code: finding for finding in findings(folder)}
    assert set(found) == {"UN412"}
    numbers = given(folder, 0)
    assert found["UN412"].evidence["best_validation"] == pytest.approx(max(numbers), abs=1e-6)
    folder, said = trained["clean"]
    assert "UN412" not in said
    assert findings(folder) == []


def findings(folder):
    diagnosis = diagnose(record for _, record in scan(folder / "run") if record is not None)
    return [finding for finding in diagnosis.findings() if finding.at_least("warning")]
