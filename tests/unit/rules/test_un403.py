import numpy as np

from unisono.rules.un403_gradient_oscillation import GradientOscillation
from unit.rules.streams import Run, causes, find


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
