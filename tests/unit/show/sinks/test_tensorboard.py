"""What TensorBoard's own reader makes of our event files."""

import builtins
import math
import os
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unisono.sinks import TensorBoard
from unit.show.sinks.build import finding, reading, run


def read_back(directory):
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    return accumulator.Reload()


def texts(accumulator, tag):
    assert accumulator.SummaryMetadata(tag).plugin_data.plugin_name == "text"
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in accumulator.Tensors(tag)]


def test_numbers_are_scalars_at_their_steps(tmp_path):
    sink = TensorBoard().open(run(tmp_path))
    sink.metrics([reading(step) for step in range(5)])
    sink.metrics([reading(5, cos_mean=None), reading(6, loss_mean=math.nan)])
    sink.close("")
    found = read_back(tmp_path / "tensorboard")
    norms = found.Scalars("unisono/grad_norm")
    assert [(event.step, event.value) for event in norms] == [(step, 2.5 + step) for step in range(7)]
    assert norms[3].wall_time == reading(3).time
    assert [event.step for event in found.Scalars("unisono/cos_mean")] == [0, 1, 2, 3, 4, 6]
    assert math.isnan(found.Scalars("unisono/loss_mean")[6].value)
    assert set(found.Tags()["scalars"]) == {
        f"unisono/{name}" for name in ("loss_mean", "loss_std", "loss_range", "grad_norm", "cos_mean", "skipped_steps")
    }


def test_findings_and_the_verdict_are_texts(tmp_path):
    sink = TensorBoard().open(run(tmp_path))
    sink.metrics([reading(9)])
    sink.finding(finding(title="Several workers <b>load</b> **the same** data"))
    sink.close("found: UN101 duplicated-data")
    found = read_back(tmp_path / "tensorboard")
    [(step, text)] = texts(found, "unisono/finding/UN101")
    assert step == 3
    assert "load</b> **the same**" in text
    assert "pass rank= to the sampler" in text
    assert all(line.startswith("    ") for line in text.splitlines())
    assert texts(found, "unisono/verdict") == [(9, "found: UN101 duplicated-data")]


def test_the_directory_and_the_names_can_be_chosen(tmp_path):
    sink = TensorBoard(str(tmp_path / "logs"), "manuals").open(run(tmp_path / "run", part="model-2"))
    sink.metrics([reading(1)])
    tags = read_back(tmp_path / "logs").Tags()["scalars"]
    assert {"sys/loss_dispersion_std", "sys/loss_dispersion_range", "train/global_grad_norm"} < set(tags)
    assert "unisono/model-2/loss_mean" in tags


def test_two_runs_in_one_directory_do_not_meet(tmp_path):
    for step in (1, 2):
        TensorBoard().open(run(tmp_path)).metrics([reading(step)])
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_a_full_disk_leaves_no_half_record(tmp_path, monkeypatch):
    sink = TensorBoard().open(run(tmp_path))
    sink.metrics([reading(1)])
    path = next((tmp_path / "tensorboard").iterdir())

    class Full:
        """Writes half of what it is given, then finds the disk full."""

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, content):
            with builtins.open(path, "ab") as file:
                file.write(bytes(content)[: len(content) // 2])
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(path), "open", lambda *_: Full())
        with pytest.raises(OSError, match="No space left"):
            sink.metrics([reading(2)])
    sink.metrics([reading(3)])
    found = read_back(tmp_path / "tensorboard")
    assert [event.step for event in found.Scalars("unisono/loss_mean")] == [1, 3]


def test_a_removed_directory_comes_back(tmp_path):
    sink = TensorBoard().open(run(tmp_path))
    for path in (tmp_path / "tensorboard").iterdir():
        os.unlink(path)
    (tmp_path / "tensorboard").rmdir()
    sink.metrics([reading(3)])
    assert [event.step for event in read_back(tmp_path / "tensorboard").Scalars("unisono/loss_mean")] == [3]


TENSORFLOW = "raise SystemExit('tensorflow was imported')"

WRITE = """
import sys
from pathlib import Path
from unisono.sinks import TensorBoard
from unisono.show.sinks.sink import SinkReading, SinkRun
sink = TensorBoard().open(SinkRun("train", Path(sys.argv[1])))
sink.metrics([SinkReading(1, 1.0, {"loss_mean": 1.0})])
sink.close("fine")
print("torch" in sys.modules)
"""


def test_neither_tensorflow_nor_torch_is_imported(tmp_path):
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW)
    command = [sys.executable, "-c", WRITE, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
