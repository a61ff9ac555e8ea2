"""Rules that watch a run's own history: with readings far apart, in bursts, after a resume, with other workers."""

from dataclasses import replace

import numpy as np
import pytest

from unisono.diagnose.rules.un405_noise_dominated import NoiseDominated
from unisono.diagnose.rules.un406_consistency_drop import ConsistencyDrop
from unisono.diagnose.rules.un407_consistency_decline import ConsistencyDecline
from unisono.diagnose.rules.un408_dispersion_spike import DispersionSpike
from unisono.diagnose.rules.un409_dispersion_rise import DispersionRise
from unisono.diagnose.rules.un410_walk_of_averages import WalkOfAverages
from unisono.diagnose.rules.un411_norm_dispersion import NormDispersion
from unit.diagnose.rules.streams import Run, attempt, judge

CHANGE = 1500
STEPS = 4000


def low(run):
    run.share[:] = 0.02
    run.loss[:] = 2.3


def drop(run):
    run.share[:] = 0.3
    run.share[CHANGE:] = 0.02


def decline(run):
    run.share = 0.5 * np.exp(-np.arange(STEPS) / 1000)
    run.loss[:] = 2.3


def losses_apart(run):
    run.loss[CHANGE:] *= np.linspace(0.5, 1.5, run.workers)


def norms_apart(run):
    factor_TW = np.tile(np.linspace(0.3, 1.7, run.workers), (STEPS - CHANGE, 1))
    run.norm[CHANGE:] *= np.random.default_rng(0).permuted(factor_TW, axis=1)


def losses_drift(run, fall=0.0):
    time = np.arange(STEPS)
    apart = np.outer(np.exp(time / 1500), np.linspace(-0.05, 0.05, run.workers))
    run.loss = (2.3 * np.exp(-fall * time))[:, None] * (1 + apart)


def losses_drift_and_fall(run):
    losses_drift(run, fall=1e-4)


FAULTS = {
    NoiseDominated: low,
    ConsistencyDrop: drop,
    ConsistencyDecline: decline,
    DispersionSpike: losses_apart,
    DispersionRise: losses_drift,
    WalkOfAverages: losses_drift_and_fall,
    NormDispersion: norms_apart,
}
SUDDEN = (ConsistencyDrop, DispersionSpike, NormDispersion)
LASTING = tuple(rule for rule in FAULTS if rule not in SUDDEN)


def faulty(rule, workers=4):
    run = Run(steps=STEPS, workers=workers)
    FAULTS[rule](run)
    return run


def at_steps(records, number_of):
    return [replace(record, step=number_of(reading)) for reading, record in enumerate(records)]


def every_twentieth(reading):
    return reading if reading < 500 else 500 + 20 * (reading - 500)


def in_bursts(reading):
    """64 steps in a row, then 500 without a word."""
    return reading + 500 * (reading // 64)


@pytest.mark.parametrize("number_of", [every_twentieth, in_bursts])
@pytest.mark.parametrize("rule", FAULTS)
def test_readings_count_not_steps(rule, number_of):
    finding = judge(rule, attempt(4), *at_steps(faulty(rule).records(), number_of))
    assert finding is not None
    assert finding.last_step > 4000


@pytest.mark.parametrize("rule", FAULTS)
def test_unheard_steps_between_change_nothing(rule):
    run = Run(steps=STEPS)
    run.heard[500:] = np.arange(500, STEPS) % 20 == 0
    assert judge(rule, attempt(4), *run.records()) is None


@pytest.mark.parametrize("rule", SUDDEN)
def test_what_changes_with_a_resume_is_no_jump(rule):
    records = list(faulty(rule).records())
    resumed = [replace(record, attempt=2) for record in records[CHANGE:]]
    assert judge(rule, attempt(4), *records[:CHANGE], attempt(4, 2), *resumed) is None
    assert judge(rule, attempt(4), *records[:CHANGE], *resumed) is None
    assert judge(rule, attempt(4), *records) is not None


@pytest.mark.parametrize("rule", SUDDEN)
def test_what_changes_with_the_world_is_no_jump(rule):
    fewer = list(faulty(rule, workers=3).records())[CHANGE:]
    before = list(faulty(rule).records())[:CHANGE]
    assert judge(rule, attempt(4), *before, *fewer) is None


@pytest.mark.parametrize("rule", LASTING)
def test_a_resume_begins_again(rule):
    """Resumed so often that no attempt is long enough to tell."""
    records = [replace(record, attempt=record.step // 390) for record in faulty(rule).records()]
    assert judge(rule, *records) is None
