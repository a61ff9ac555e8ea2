from dataclasses import replace

import numpy as np
import pytest

from unisono.diagnose.rules.un405_noise_dominated import NoiseDominated
from unit.diagnose.rules.build import loader
from unit.diagnose.rules.streams import Run, attempt, causes, find, judge


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


def fighting(cosine=-0.1, windows=-0.8, falls=0.0, **extra):
    """Workers that pull against each other; `windows` are the cosines of their summed directions."""
    run = Run(steps=200, extra={"window_cos_W": (windows,) * 4, "window_steps": 32, **extra})
    run.share[:] = cosine
    run.loss[:] = (1.6 * np.exp(-falls * np.arange(200)))[:, None] + 0.01 * run.wobble[:, None]
    return run


def windowed(run):
    return [replace(record, window_start=record.step // 32 * 32) for record in run.records()]


def fought(*before, **fields):
    return judge(NoiseDominated, attempt(4), *before, *windowed(fighting(**fields)))


def test_workers_that_fight():
    finding = fought()
    assert (finding.severity, finding.ranks, causes(finding)[0]) == ("info", (), "conflicting-data")
    assert "fight" in finding.why


def test_workers_that_fight_while_something_is_learnt():
    assert causes(fought(falls=0.01, cosine=-0.2))[0] == "conflicting-data"


@pytest.mark.parametrize(
    "healthy",
    [{"cosine": 0.0}, {"cosine": -0.02}, {"windows": -0.3}, {"falls": 0.01, "cosine": -0.04}, {"fresh": False}],
    ids=["noise", "hardly below zero", "no lasting opposition", "a loss that falls", "batches repeated on purpose"],
)
def test_cosines_below_zero_that_are_no_fight(healthy):
    finding = fought(**healthy)
    assert finding is None or causes(finding)[0] != "conflicting-data"


def test_few_samples_divided_among_all():
    """What one worker has of them the others have not: of 64 samples, 8 a worker, cosines are -1/7."""
    assert fought(loader(same={"dataset": "64"}), cosine=-0.14) is None
    assert causes(fought(loader(same={"dataset": "6400"}), cosine=-0.14))[0] == "conflicting-data"


def test_a_size_of_a_dataset_that_nothing_has():
    assert fought(loader(same={"dataset": "9" * 5000})).severity == "info"
