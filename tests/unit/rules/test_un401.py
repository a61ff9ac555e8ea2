import pytest

from unisono.rules.un401_gradient_explosion import GradientExplosion
from unit.rules.streams import Run, causes, find


def test_an_explosion_is_critical():
    run = Run()
    run.norm[400:] *= 50
    run.loss[400:] *= 5
    finding = find(GradientExplosion, run)
    assert (finding.severity, finding.state, finding.ranks) == ("critical", "open", ())
    assert finding.first_step == 400
    assert causes(finding)[0] == "learning-rate"
    assert "times the median of its last 50 calm readings" in finding.why


def test_three_readings_are_a_warning():
    run = Run()
    run.norm[400:403] *= 50
    run.loss[400:403] *= 1.2
    assert find(GradientExplosion, run).severity == "warning"


@pytest.mark.parametrize(("raised", "severity"), [(1, "info"), (5, "warning")])
def test_one_spike_that_comes_back(raised, severity):
    run = Run()
    run.norm[400] *= 50
    run.loss[400] *= raised
    finding = find(GradientExplosion, run)
    assert (finding.severity, finding.state) == (severity, "resolved")
    assert finding.first_step == finding.last_step == 400


def test_one_worker_led():
    run = Run()
    run.norm[400:, 2] *= 100
    run.loss[400:] *= 5
    finding = find(GradientExplosion, run)
    assert finding.ranks == (2,)
    assert causes(finding)[0] == "bad-data"


def test_a_larger_norm_while_the_loss_falls_is_a_remark():
    run = Run()
    run.norm[400:] *= 50
    run.loss[400:] *= 0.5
    assert find(GradientExplosion, run).severity == "info"


def test_a_loss_that_comes_down_again_is_not_critical():
    run = Run()
    run.norm[400:] *= 50
    run.loss[400:420] *= 10
    run.loss[401:] *= 0.9
    assert find(GradientExplosion, run).severity == "warning"


def test_five_times_the_norm_is_no_explosion():
    run = Run()
    run.norm[400:] *= 5
    assert find(GradientExplosion, run) is None


def test_what_clipping_returned_is_preferred():
    run = Run(extra={"clip_norm": 1.0})
    run.norm[400:] *= 50
    assert find(GradientExplosion, run) is None


def test_a_jump_of_the_learning_rate_makes_it_learn_again():
    run = Run()
    run.norm[400:] *= 50
    run.lr[400:] *= 3
    assert find(GradientExplosion, run) is None
