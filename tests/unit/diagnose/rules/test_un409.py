import numpy as np

from unisono.diagnose.rules.un409_dispersion_rise import DispersionRise
from unit.diagnose.rules.streams import Run, causes, find


def rising(steps=3000, **extra):
    run = Run(steps=steps, extra=extra)
    run.loss = 2.0 + 0.05 * np.exp(np.arange(steps) / 1200)[:, None] * np.random.default_rng(0).standard_normal(
        (steps, 4)
    )
    return run


def test_losses_drift_apart():
    finding = find(DispersionRise, rising())
    assert (finding.severity, finding.ranks) == ("warning", ())
    assert causes(finding)[0] == "data-drift"


def test_losses_around_zero():
    """As those of policy gradients: of the steps at which the mean happens to be above zero nothing can be learnt."""
    random, run = np.random.default_rng(0), Run(steps=3000)
    spread = 0.1 * np.exp(np.arange(3000) / 1200)[:, None]
    run.loss = 0.3 * random.standard_normal((3000, 1)) + spread * random.standard_normal((3000, 4))
    assert find(DispersionRise, run) is None


def test_weights_that_differ_come_first():
    finding = find(DispersionRise, rising(audits=("weights",), weights_W=(0, 0, 2, 0)))
    assert causes(finding)[0] == "replicas-differ"


def test_a_rise_with_a_falling_loss_is_another_finding():
    run = rising()
    run.loss *= np.exp(-5e-4 * np.arange(3000))[:, None]
    assert find(DispersionRise, run) is None


def test_a_rise_with_the_loss_itself():
    run = rising()
    run.loss = 2.0 * np.exp(np.arange(3000) / 1200)[:, None] * np.exp(0.05 * run.wobble[:, None] * [1, 2, 3, 4])
    assert find(DispersionRise, run) is None


def test_the_early_rise():
    run = Run(steps=3000)
    size = 0.3 + 0.7 * np.minimum(np.arange(3000) / 1250, 1)
    run.loss = 2.0 + 0.2 * size[:, None] * np.random.default_rng(0).standard_normal((3000, 4))
    assert find(DispersionRise, run) is None


def test_a_rise_that_a_harder_loss_explains():
    run = Run(steps=3000)
    size = np.where(np.arange(3000) < 1500, 1.0, 1.25)[:, None]
    run.loss = size * (2.0 + 0.1 * size * np.random.default_rng(0).standard_normal((3000, 4)))
    assert find(DispersionRise, run) is None
