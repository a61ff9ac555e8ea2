import numpy as np

from unisono.diagnose.rules.un410_walk_of_averages import WalkOfAverages
from unit.diagnose.rules.streams import Run, causes, find


def walking(fall=1e-4, growth=1200, **extra):
    run = Run(steps=3000, extra=extra)
    noise = np.random.default_rng(0).standard_normal((3000, 4))
    time = np.arange(3000)[:, None]
    run.loss = 2.0 * np.exp(-fall * time) + 0.05 * np.exp(time / growth) * noise
    return run


def test_the_mean_falls_and_the_workers_drift_apart():
    finding = find(WalkOfAverages, walking())
    assert (finding.severity, finding.ranks) == ("warning", ())
    assert "replicas-differ" not in causes(finding)


def test_critical_only_where_the_weights_differ():
    finding = find(WalkOfAverages, walking(audits=("weights",), weights_W=(0, 0, 2, 0)))
    assert finding.severity == "critical"
    assert causes(finding) == ["replicas-differ"]


def test_a_loss_that_does_not_fall():
    assert find(WalkOfAverages, walking(fall=0)) is None


def test_a_loss_that_falls_fast():
    assert find(WalkOfAverages, walking(fall=4e-4)) is None


def test_dispersion_that_falls_with_the_loss():
    assert find(WalkOfAverages, walking(growth=-1200)) is None


def test_only_relative_dispersion_rises():
    """A loss near zero, made up of few hard samples: healthy."""
    run = walking(fall=1e-3)
    run.loss = np.exp(-1e-3 * np.arange(3000))[:, None] * (1 + 1e-4 * np.arange(3000)[:, None] * run.wobble[:, None])
    assert find(WalkOfAverages, run) is None
