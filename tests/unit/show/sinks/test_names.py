"""The names that dashboards rely on."""

from dataclasses import fields
from pathlib import Path

import pytest

from unisono.common.errors import UserError
from unisono.records import StepRecord, ValidationRecord
from unisono.show.sinks.names import (
    METRICS,
    METRICS_W,
    dotted,
    prometheus_name,
    reading_of,
    slashed,
    validation_reading,
)
from unisono.show.sinks.sink import SinkRun
from unisono.sinks import MLflow, TensorBoard, WandB
from unit.show.sinks.build import record

CONTRACT = (
    *("loss_mean", "loss_std", "loss_range", "grad_norm", "grad_norm_std", "grad_norm_cv"),
    *("cos_mean", "cos_min", "cos_expected", "noise_scale", "effective_workers", "kept_workers"),
    *("skipped_steps", "listening_cost", "validation"),
)


def test_every_metric_is_a_field_of_a_record_and_has_its_name():
    assert tuple(METRICS) == CONTRACT
    known = {field.name for field in (*fields(StepRecord), *fields(ValidationRecord))}
    assert known.issuperset(METRICS)
    assert known.issuperset(f"{name}_W" for name in METRICS_W)
    assert slashed()["loss_std"] == "unisono/loss_std"
    assert slashed()["step"] == "unisono/step"


def test_the_manuals_names_take_the_place_of_three():
    names = slashed(style="manuals")
    assert names["loss_std"] == "sys/loss_dispersion_std"
    assert names["loss_range"] == "sys/loss_dispersion_range"
    assert names["grad_norm"] == "train/global_grad_norm"
    assert {name: names[name] for name in names if names[name] != slashed()[name]}.keys() == {
        *("loss_std", "loss_range", "grad_norm")
    }


def test_a_second_model_has_names_of_its_own():
    assert slashed("model-2")["loss_mean"] == "unisono/model-2/loss_mean"


def test_names_of_prometheus_and_opentelemetry():
    assert prometheus_name("loss_std") == "unisono_loss_std"
    assert [dotted(name) for name in ("loss_std", "grad_norm_cv", "cos_min", "noise_scale", "rank_loss")] == [
        *("unisono.loss.std", "unisono.grad.norm_cv", "unisono.cos.min", "unisono.noise_scale", "unisono.rank.loss")
    ]
    # No name is the home of another one.
    dots = [dotted(name) for name in (*METRICS, *(f"rank_{name}" for name in METRICS_W))]
    assert [one for one in dots if any(other.startswith(f"{one}.") for other in dots)] == []


def test_a_reading_holds_what_is_known():
    reading = reading_of(record(7, cos_mean=None, cos_W=(), loss_W=(1.0, None)))
    assert reading.step == 7
    assert "cos_mean" not in reading.values
    assert reading.values["skipped_steps"] == 0.0
    assert "kept_workers" not in reading.values
    assert reading_of(record(7, kept_workers=3)).values["kept_workers"] == 3.0
    assert dict(reading.values_W) == {"loss": (1.0, None), "norm": (3.0, 4.0)}


def test_a_validation_is_a_reading_of_its_own_that_joins_the_others():
    reading = validation_reading(ValidationRecord(1, 6, 4.0, 0, 0.75))
    assert (reading.step, dict(reading.values)) == (6, {"validation": 0.75})
    assert "validation" not in reading_of(record(7)).values
    assert reading.followed_by(reading_of(record(7))).values["validation"] == 0.75


def test_merged_readings_keep_the_newest_of_each_number():
    heard, unheard = reading_of(record(1)), reading_of(StepRecord(1, 2, 5.0, loss_mean=9.0))
    merged = heard.followed_by(unheard)
    assert (merged.step, merged.time) == (2, 5.0)
    assert (merged.values["loss_mean"], merged.values["grad_norm"]) == (9.0, 3.5)
    assert merged.values_W["norm"] == (3.0, 4.0)


@pytest.mark.parametrize(
    ("directory", "part", "name"),
    [
        ("/runs/today", "", "today"),
        ("/runs/today/model-2", "model-2", "today/model-2"),
        ("/runs/today/ranks-4-7/model-2", "ranks-4-7/model-2", "today/ranks-4-7/model-2"),
        ("/mine/model-2", "", "model-2"),
    ],
)
def test_a_run_is_named_after_its_directory(directory, part, name):
    assert SinkRun.of(Path(directory), part, [0]).name == name


@pytest.mark.parametrize("sink", [TensorBoard, WandB, MLflow])
def test_an_unknown_style_is_refused(sink):
    with pytest.raises(UserError, match="Found `mine`"):
        sink(names="mine")
