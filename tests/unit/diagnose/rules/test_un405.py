from unisono.diagnose.rules.un405_noise_dominated import NoiseDominated
from unit.diagnose.rules.streams import Run, find


def noisy():
    run = Run(steps=2000)
    run.share[:] = 0.02
    run.loss[:] = 2.3 + 0.01 * run.wobble[:, None]
    return run


def test_noise_and_a_level_loss():
    finding = find(NoiseDominated, noisy())
    assert (finding.severity, finding.ranks) == ("info", ())
    assert 0.01 < finding.evidence["cos_expected"] < 0.03


def test_a_loss_that_still_falls():
    run = noisy()
    run.loss *= (0.999 ** (run.lr.cumsum() * 1000))[:, None]
    assert find(NoiseDominated, run) is None


def test_directions_that_agree():
    run = noisy()
    run.share[:] = 0.2
    assert find(NoiseDominated, run) is None


def test_an_early_low_is_not_enough():
    run = noisy()
    run.share[150:] = 0.2
    assert find(NoiseDominated, run) is None
