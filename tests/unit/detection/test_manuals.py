"""The manuals' thresholds, each on steps that reach it and on steps that just do not."""

import pytest
from benchmarks.detection.manuals import RULES, Manuals

from unisono.diagnose.manuals import PAST
from unisono.records import StepRecord


def heard(fields, count=1, before=()):
    manuals = Manuals()
    for number, values in enumerate([*before, *[fields] * count]):
        manuals.see(StepRecord(1, number, float(number), True, **values))
    return {name: alarms for name, alarms in manuals.alarms.items() if alarms}


USUAL_NORM = [{"grad_norm": 1.0}] * PAST
SPREADS = [{"loss_mean": 1.0, "loss_std": spread} for spread in (0.9, 1.1) * (PAST // 2)]


@pytest.mark.parametrize(
    ("name", "reaches", "falls_short", "before"),
    [
        ("Persistently Low", {"cos_mean": 0.09}, {"cos_mean": 0.11}, []),
        ("Abnormally High", {"cos_mean": 0.995}, {"cos_mean": 0.98}, []),
        ("Gradient Explosion", {"grad_norm": 2.1}, {"grad_norm": 1.9}, USUAL_NORM),
        ("Gradient Vanishing", {"grad_norm": 9e-6}, {"grad_norm": 1.1e-5}, []),
        ("High Dispersion", {"norm_W": (1.0, 1.1, 0.9, 2.0)}, {"norm_W": (1.0, 1.1, 0.9, 1.2)}, []),
        ("Severe Spikes", {"loss_mean": 1.0, "loss_std": 1.35}, {"loss_mean": 1.0, "loss_std": 1.25}, SPREADS),
    ],
)
def test_a_threshold(name, reaches, falls_short, before):
    assert heard(reaches, before=before).get(name) == 1
    assert name not in heard(falls_short, before=before)


def test_a_sudden_drop_needs_a_high_cosine_before():
    assert heard({"cos_mean": 0.05}, before=[{"cos_mean": 0.6}])["Sudden Drop"] == 1
    assert "Sudden Drop" not in heard({"cos_mean": 0.05}, before=[{"cos_mean": 0.4}])
    forgotten = [{"cos_mean": 0.6}, *[{"cos_mean": 0.4}] * PAST]
    assert "Sudden Drop" not in heard({"cos_mean": 0.05}, before=forgotten)


def test_losses_that_fall_while_they_spread():
    course = [{"loss_mean": 3 - number / 100, "loss_std": 1 + number / 100} for number in range(PAST + 10)]
    assert heard({}, 0, course)["Critical Warning"] == 10
    assert "Critical Warning" not in heard({}, 0, [one | {"loss_mean": 1.0} for one in course])
    assert "Critical Warning" not in heard({}, 0, [one | {"loss_std": 1.0} for one in course])


def test_every_step_is_counted():
    assert heard({"cos_mean": 0.0, "grad_norm": 0.0}, 7) == {"Persistently Low": 7, "Gradient Vanishing": 7}


def test_every_rule_is_described():
    records = [{"cos_mean": 0.6, "loss_mean": 1.0, "loss_std": 1.0, "grad_norm": 1.0, "norm_W": (1.0,) * 3}] * (
        PAST + 1
    )
    manuals = Manuals()
    for number, values in enumerate(records):
        manuals.see(StepRecord(1, number, float(number), True, **values))
    assert set(manuals.alarms) == set(RULES)
