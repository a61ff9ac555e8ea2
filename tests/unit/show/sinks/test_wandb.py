"""What stands in the file of a real W&B run that the script has started, offline."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import wandb

from unisono.common.errors import UserError
from unisono.sinks import WandB
from unit.show.sinks import wandb_file
from unit.show.sinks.build import finding, reading, run


@pytest.fixture
def started(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")

    def start():
        return wandb.init(mode="offline", dir=str(tmp_path), project="test")

    yield start
    if wandb.run is not None:
        wandb.run.finish()


@pytest.fixture
def sink(tmp_path):
    return WandB().open(run(tmp_path))


def file_of(the_run):
    path = Path(the_run.settings.sync_file)
    the_run.finish()
    # W&B's own process writes, and may still be at it.
    deadline = time.monotonic() + 10
    while not wandb_file.is_complete(path) and time.monotonic() < deadline:
        time.sleep(0.02)
    return path


def elsewhere(work, *arguments):
    """On another thread than the script's, as sinks are."""
    problems = []

    def guarded():
        try:
            work(*arguments)
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


def test_numbers_join_the_scripts_rows_and_leave_its_steps_alone(started, sink):
    the_run = started()
    for step in range(5):
        the_run.log({"mine": step}, step=10 * step)
        elsewhere(sink.metrics, [reading(100 + step)])
    history = wandb_file.rows(file_of(the_run))
    assert [(row["_step"], row["mine"]) for row in history] == [(10 * step, step) for step in range(5)]
    assert [row["unisono/step"] for row in history] == [100, 101, 102, 103, 104]
    assert [row["unisono/grad_norm"] for row in history] == [102.5, 103.5, 104.5, 105.5, 106.5]


def test_a_script_that_counts_no_steps_keeps_its_rows(started, sink):
    the_run = started()
    for step in range(3):
        the_run.log({"mine": step})
        elsewhere(sink.metrics, [reading(step)])
        elsewhere(sink.metrics, [reading(step + 50)])
    history = wandb_file.rows(file_of(the_run))
    assert [row["mine"] for row in history if "mine" in row] == [0, 1, 2]
    assert [row["_step"] for row in history if "mine" in row] == [0, 1, 2]
    assert [row["unisono/step"] for row in history if "unisono/step" in row] == [50, 51, 52]


def test_the_numbers_have_a_step_of_their_own(started, sink):
    the_run = started()
    sink.metrics([reading(1)])
    defined = {one.name or one.glob_name: one.step_metric for one in wandb_file.metrics(file_of(the_run))}
    assert defined["unisono/*"] == "unisono/step"


def test_the_manuals_names(started, tmp_path):
    the_run = started()
    WandB("manuals").open(run(tmp_path)).metrics([reading(1)])
    path = file_of(the_run)
    assert wandb_file.rows(path)[-1]["sys/loss_dispersion_std"] == 0.5
    assert wandb_file.rows(path)[-1]["train/global_grad_norm"] == 3.5
    defined = {one.name: one.step_metric for one in wandb_file.metrics(path)}
    assert defined["train/global_grad_norm"] == "unisono/step"


def test_findings_are_alerts_and_stand_in_the_summary(started, sink):
    the_run = started()
    elsewhere(sink.finding, finding(title="Several workers load the same data, and it is a very long story"))
    elsewhere(sink.finding, finding("UN405", severity="info"))
    elsewhere(sink.close, "found: UN101 duplicated-data")
    path = file_of(the_run)
    [alert] = wandb_file.alerts(path)
    assert alert.level == "ERROR"
    assert alert.title.startswith("UN101 Several workers")
    assert len(alert.title) < 64
    assert "pass rank= to the sampler" in alert.text
    summary = wandb_file.summary(path)
    assert summary["unisono/UN101"].startswith("Several workers")
    assert summary["unisono/UN405"].startswith("Several workers load the same data, info, ")
    assert summary["unisono/verdict"] == "found: UN101 duplicated-data"


def test_without_a_run_none_is_begun(sink):
    for work in (lambda: sink.metrics([reading(1)]), lambda: sink.finding(finding())):
        with pytest.raises(UserError, match=r"call `wandb\.init` there"):
            work()
    sink.close("fine")
    assert wandb.run is None


def test_a_run_that_begins_later_is_found_and_one_that_ended_is_let_go(started, sink):
    with pytest.raises(UserError):
        sink.finding(finding())
    the_run = started()
    sink.finding(finding())
    assert "unisono/UN101" in wandb_file.summary(file_of(the_run))
    sink.metrics([reading(2)])
    with pytest.raises(UserError, match="has finished"):
        sink.finding(finding())
    sink.close("fine")


def test_wandb_is_not_imported_for_a_script_that_does_not_use_it():
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from unisono.sinks import WandB
from unit.show.sinks.build import finding, reading, run
sink = WandB().open(run(Path(".")))
for work in (lambda: sink.metrics([reading(1)]), lambda: sink.finding(finding())):
    try:
        work()
    except ValueError:
        print("wandb" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(Path(__file__).parents[3])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "False\nFalse\n", done.stderr
