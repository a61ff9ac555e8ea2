"""Watching never changes training: weights are bit-equal with and without unisono, also while it fails."""

import json
from pathlib import Path

import pytest

from launch import forked, launch
from unisono.records.runfile import read_run
from unisono.show.analysis.checkup import examine

JOB = Path(__file__).parent.parent / "jobs" / "inert.py"
CASES = [
    "perceptron-sgd",
    "perceptron-adamw",
    "convolutional-sgd",
    "convolutional-adamw",
    "transformer-sgd",
    "transformer-adamw",
    "accumulation",
    "compression",
    "scaler",
    "bucket-view",
    "static-graph",
    "checkpointed",
    "find-unused",
]
OWN_STATISTICS = {"convolutional-sgd", "convolutional-adamw", "checkpointed"}
FAULTS = {"raising-reader": "raised", "raising-signal": "raised", "raising-thread": "raised", "late-3s": "slept"}
FAILING = [*FAULTS, "full-disk"]


def at_length(names):
    return [pytest.param(workers, 300, names, marks=pytest.mark.soak("inert")) for workers in (2, 3, 4)]


def trained(tmp_path, workers, steps, names):
    outcome = launch(forked(workers, JOB, steps, *names), env={"RESULTS": tmp_path}, timeout=900)
    assert outcome.returncode == 0, outcome
    assert (b"cannot be written" in outcome.stderr) == ("full-disk" in names), outcome
    return {
        name: [json.loads((tmp_path / f"{name}.{rank}.json").read_text()) for rank in range(workers)] for name in names
    }


def assert_bit_equal(results):
    for name, ranks in results.items():
        assert [rank["plain"] for rank in ranks] == [rank["heard"] for rank in ranks], name
        # Batch statistics are each rank's own until the next forward.
        assert len({rank["plain"] for rank in ranks}) == 1 or name in OWN_STATISTICS, name


def test_quick_cases_are_bit_equal(tmp_path):
    names = ["perceptron-sgd", "transformer-adamw", "accumulation", "scaler", "checkpointed"]
    assert_bit_equal(trained(tmp_path, 2, 60, names))
    for name in names:
        run = read_run(tmp_path / name)
        assert len(run.timeline()) == 60, name
        assert all(None not in record.loss_W for record in run.timeline()), name


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "steps", "names"), [(3, 80, CASES), *at_length(CASES)])
def test_weights_are_bit_equal(tmp_path, workers, steps, names):
    assert_bit_equal(trained(tmp_path, workers, steps, names))
    for name in names:
        assert [found for found in examine(tmp_path / name).findings if found.at_least("warning")] == [], name


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "steps", "names"), [(3, 80, FAILING), *at_length(FAILING)])
def test_weights_are_bit_equal_while_unisono_fails(tmp_path, workers, steps, names):
    results = trained(tmp_path, workers, steps, names)
    assert_bit_equal(results)
    for name, trace in FAULTS.items():
        fired = [rank["fired"].get(trace, 0) for rank in results[name]]
        assert fired[-1] > 0, f"{name} was not injected"
        assert not any(fired[:-1]), name
    assert (tmp_path / "full-disk" / "run.jsonl").stat().st_size <= 4096
