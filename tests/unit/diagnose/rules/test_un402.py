import numpy as np
import pytest

from unisono.diagnose.rules.un402_gradient_vanishing import GradientVanishing
from unisono.records import FactsRecord
from unit.diagnose.rules.streams import Run, attempt, causes, find, judge


def vanishing():
    run = Run()
    run.norm[300:] *= 1e-6
    run.loss[:] = 2.3
    return run


def test_vanished_and_nothing_learnt():
    finding = find(GradientVanishing, vanishing())
    assert (finding.severity, finding.first_step, finding.ranks) == ("warning", 300, ())
    assert causes(finding)[0] == "dead-layers"


def test_half_precision_suspects_underflow():
    finding = find(GradientVanishing, vanishing(), FactsRecord(1, 0, 0.0, "model", same={"dtype": "torch.float16"}))
    assert causes(finding)[0] == "underflow"


def test_a_gradient_that_is_zero():
    run = vanishing()
    run.norm[300:] = 0
    assert find(GradientVanishing, run) is not None


def test_a_small_gradient_after_learning_is_success():
    run = vanishing()
    run.loss[200:] = 2.0
    assert find(GradientVanishing, run) is None


def test_tiny_from_the_start_is_only_a_unit():
    run = Run()
    run.norm *= 1e-9
    run.loss[:] = 2.3
    assert find(GradientVanishing, run) is None


def test_forty_readings_are_not_enough():
    run = Run()
    run.norm[300:340] *= 1e-6
    run.loss[:] = 2.3
    assert find(GradientVanishing, run) is None


def test_zero_from_the_very_first_step():
    run = Run(steps=100)
    run.norm[:] = 0
    run.loss[:] = 2.3
    finding = find(GradientVanishing, run)
    assert finding.first_step < 50
    assert causes(finding)[0] == "underflow"
    assert "zero at 50 of the last 50 readings" in finding.why


def test_zero_at_most_readings_although_the_loss_falls():
    run = Run()
    run.norm[300:] *= np.arange(300, 1000)[:, None] % 3 == 0
    assert find(GradientVanishing, run).evidence["zero_readings"] >= 33


def test_zero_at_some_readings():
    run = Run()
    run.norm[300::3] = 0
    assert find(GradientVanishing, run) is None


def test_zero_where_nothing_is_left_to_learn():
    run = Run()
    run.norm[500:] = 0
    run.loss[500:] *= 1e-4
    assert find(GradientVanishing, run) is None


def in_layers(*norms, since=0, steps=300):
    """Nothing is learnt; layer groups `first`, `middle` and `head` have these norms from a step on."""
    run = Run(steps=steps)
    run.loss[:] = 2.3
    run.group_norm = np.ones((steps, 3))
    run.group_norm[since:] = norms
    return run


def found_in_layers(run):
    return judge(GradientVanishing, attempt(4, groups=("first", "middle", "head")), *run.records())


def test_layers_that_nothing_gets_through_to():
    finding = found_in_layers(in_layers(1e-8, 1e-7, 1))
    assert (finding.severity, causes(finding)[0]) == ("warning", "initialisation")
    assert finding.evidence["where"] == "first, middle"
    assert finding.first_step <= 60


@pytest.mark.parametrize("norm", [0.0, 1e-9])
def test_layers_that_died_later(norm):
    finding = found_in_layers(in_layers(norm, 1, 1, since=100))
    assert causes(finding)[0] == "dead-layers"
    assert 150 <= finding.first_step <= 170


def test_layers_after_half_precision():
    half = FactsRecord(1, 0, 0.0, "model", same={"dtype": "torch.float16"})
    finding = judge(GradientVanishing, attempt(4), half, *in_layers(1e-8, 1, 1).records())
    assert "underflow" in causes(finding)[:2]


def test_frozen_layers_are_silent():
    assert found_in_layers(in_layers(0, 0, 1)) is None


def test_layers_that_wake_up():
    run = in_layers(1, 1, 1)
    run.group_norm[:30] = (1e-9, 0, 1)
    assert found_in_layers(run) is None


def test_small_layers_while_the_loss_falls():
    run = in_layers(1e-8, 1, 1)
    run.loss *= np.linspace(1, 0.7, 300)[:, None]
    assert found_in_layers(run) is None


def test_layers_of_different_size():
    assert found_in_layers(in_layers(1e-5, 1e-3, 1)) is None


def test_slow_learning_with_gradients():
    assert find(GradientVanishing, in_layers(1, 1, 1)) is None
