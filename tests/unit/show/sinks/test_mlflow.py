"""What MLflow's own client reads back from the run that the script has started."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from unisono.common.errors import UserError
from unisono.sinks import MLflow
from unit.show.sinks.build import finding, reading, run


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    # Newer versions keep runs in a database unless asked not to; that would need one more package.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(tmp_path.joinpath("mlruns").as_uri())
    yield
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.fixture
def sink(tmp_path):
    return MLflow().open(run(tmp_path))


def elsewhere(work, *arguments):
    """On another thread than the script's, as sinks are."""
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    thread.join()


def history(the_run, name):
    return [(one.step, one.value) for one in MlflowClient().get_metric_history(the_run.info.run_id, name)]


def tags(the_run):
    return MlflowClient().get_run(the_run.info.run_id).data.tags


def test_numbers_reach_the_run_of_the_training_thread(sink):
    the_run = mlflow.start_run()
    elsewhere(sink.metrics, [reading(step) for step in range(200)])
    elsewhere(sink.metrics, [reading(200, grad_norm=None)])
    assert history(the_run, "unisono/grad_norm") == [(step, 2.5 + step) for step in range(200)]
    assert len(history(the_run, "unisono/loss_mean")) == 201
    [first, *_] = MlflowClient().get_metric_history(the_run.info.run_id, "unisono/loss_mean")
    assert first.timestamp == 1_700_000_000_000


def test_findings_and_the_verdict_are_tags(sink):
    the_run = mlflow.start_run()
    elsewhere(sink.finding, finding(why="x" * 10_000))
    elsewhere(sink.close, "found: UN101 duplicated-data")
    assert tags(the_run)["unisono.UN101"].startswith("Several workers load the same data, critical, ranks 1, 3")
    assert len(tags(the_run)["unisono.UN101"]) == 5_000
    assert tags(the_run)["unisono.verdict"] == "found: UN101 duplicated-data"


def test_the_manuals_names_and_a_second_model(tmp_path):
    the_run = mlflow.start_run()
    sink = MLflow("manuals").open(run(tmp_path, part="model-2"))
    sink.metrics([reading(1)])
    sink.finding(finding())
    assert history(the_run, "sys/loss_dispersion_std") == [(1, 0.5)]
    assert history(the_run, "unisono/model-2/loss_mean") == [(1, 1.5)]
    assert "unisono.model-2.UN101" in tags(the_run)


def test_without_a_run_none_is_begun(sink):
    for work in (lambda: sink.metrics([reading(1)]), lambda: sink.finding(finding())):
        with pytest.raises(UserError, match=r"call `mlflow\.start_run` there"):
            work()
    sink.close("fine")
    assert mlflow.active_run() is None


def test_a_run_that_begins_later_is_found_and_written_to_after_its_end(sink):
    with pytest.raises(UserError):
        sink.finding(finding())
    the_run = mlflow.start_run()
    elsewhere(sink.metrics, [reading(1)])
    mlflow.end_run()
    elsewhere(sink.finding, finding())
    elsewhere(sink.close, "found: UN101")
    assert {"unisono.UN101", "unisono.verdict"} <= tags(the_run).keys()


def test_a_run_inside_the_run_takes_nothing_over(sink):
    with mlflow.start_run() as outer:
        elsewhere(sink.metrics, [reading(1)])
        with mlflow.start_run(nested=True) as inner:
            elsewhere(sink.metrics, [reading(2)])
            elsewhere(sink.finding, finding())
        elsewhere(sink.metrics, [reading(3)])
    assert [step for step, _ in history(outer, "unisono/loss_mean")] == [1, 2, 3]
    assert "unisono.UN101" in tags(outer)
    assert history(inner, "unisono/loss_mean") == []


def test_a_run_begun_later_on_another_thread_takes_nothing_over(sink):
    def evaluate():
        # Runs are compared by their milliseconds.
        time.sleep(0.01)
        with mlflow.start_run() as other:
            elsewhere(sink.metrics, [reading(2)])
        assert history(other, "unisono/loss_mean") == []

    with mlflow.start_run() as the_run:
        elsewhere(sink.metrics, [reading(1)])
        elsewhere(evaluate)
    assert [step for step, _ in history(the_run, "unisono/loss_mean")] == [1, 2]


def test_the_outermost_run_is_found_even_if_another_is_inside_it_already(sink):
    with mlflow.start_run() as outer, mlflow.start_run(nested=True):
        elsewhere(sink.metrics, [reading(1)])
    assert len(history(outer, "unisono/loss_mean")) == 1


def test_the_next_run_is_taken_when_the_first_has_ended(sink):
    for step in (1, 2):
        with mlflow.start_run() as the_run:
            elsewhere(sink.metrics, [reading(step)])
        assert [at for at, _ in history(the_run, "unisono/loss_mean")] == [step]


def test_mlflow_is_not_imported_for_a_script_that_does_not_use_it():
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from unisono.sinks import MLflow
from unit.show.sinks.build import finding, reading, run
sink = MLflow().open(run(Path(".")))
for work in (lambda: sink.metrics([reading(1)]), lambda: sink.finding(finding())):
    try:
        work()
    except ValueError:
        print("mlflow" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(Path(__file__).parents[3])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "False\nFalse\n", done.stderr
