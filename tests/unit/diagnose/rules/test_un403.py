import numpy as np

from unisono.diagnose.rules.un403_gradient_oscillation import GradientOscillation
from unit.diagnose.rules.streams import Run, causes, find


def swinging(since, factor=3.0):
    run = Run()
    run.norm[since::2] *= factor
    return run


def test_swings_of_growing_size():
    finding = find(GradientOscillation, swinging(500))
    assert (finding.severity, finding.state, finding.ranks) == ("warning", "open", ())
    assert 500 <= finding.first_step <= 560
    assert causes(finding)[0] == "learning-rate"


def test_what_it_always_did():
    assert find(GradientOscillation, swinging(0)) is None


def test_noise_that_grows_does_not_alternate():
    run = Run()
    run.norm[500:] *= np.exp(np.random.default_rng(0).standard_normal(500))[:, None]
    assert find(GradientOscillation, run) is None


def test_small_swings():
    assert find(GradientOscillation, swinging(500, factor=1.2)) is None


def test_steps_that_are_not_consecutive_say_nothing():
    run = swinging(500)
    run.skipped[::40] = True
    assert find(GradientOscillation, run) is None


def test_resolves():
    run = Run(steps=1500)
    run.norm[500:800:2] *= 3
    assert find(GradientOscillation, run).state == "resolved"


def losses_swinging(since, heard):
    run = Run()
    run.loss[since::2] *= 3
    run.heard[:] = heard
    return run


def test_the_loss_tells_where_the_norm_is_not_heard():
    heard = np.arange(1000) % 20 == 0
    finding = find(GradientOscillation, losses_swinging(600, heard))
    assert (finding.severity, finding.state) == ("warning", "open")
    assert 600 <= finding.first_step <= 670
    assert "mean loss goes up and down" in finding.why


def test_the_norm_counts_where_it_is_heard():
    assert find(GradientOscillation, losses_swinging(600, True)) is None


def test_noise_of_the_loss_does_not_alternate():
    run = losses_swinging(1000, False)
    run.loss[500:] *= np.exp(np.random.default_rng(0).standard_normal(500))[:, None]
    assert find(GradientOscillation, run) is None


def test_a_burst_is_too_short_for_the_norm():
    run = losses_swinging(600, False)
    run.heard[500:564] = run.heard[800:864] = True
    assert "mean loss" in find(GradientOscillation, run).why
