import numpy as np
import pytest

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un406_consistency_drop import ConsistencyDrop
from unisono.records import StepRecord
from unit.diagnose.rules.streams import Run, attempt, causes, find


def dropping(step, low=0.02):
    run = Run()
    run.share[:] = 0.3
    run.share[step:] = low
    return run


@pytest.mark.parametrize("workers", [2, 4])
def test_a_sudden_drop(workers):
    run = dropping(500)
    run.workers = workers
    finding = find(ConsistencyDrop, run)
    assert (finding.severity, finding.state, finding.ranks) == ("warning", "open", ())
    assert 500 <= finding.first_step <= 530
    assert causes(finding)[0] == "data-changed"


def test_replicas_that_differ_come_first():
    run = dropping(500)
    run.extra = {"audits": ("weights",), "weights_W": (0, 0, 2, 0)}
    assert causes(find(ConsistencyDrop, run))[0] == "replicas-differ"


def test_the_early_fall_is_learning():
    run = Run(steps=600)
    run.share = 0.05 + 0.75 * np.exp(-np.arange(600) / 80)
    assert find(ConsistencyDrop, run) is None


@pytest.mark.parametrize("step", [60, 120, 300])
def test_soon_after_the_first_50_readings(step):
    assert step < find(ConsistencyDrop, dropping(step)).first_step <= step + 10


def test_never_in_the_first_readings():
    assert find(ConsistencyDrop, dropping(30)) is None


def test_a_late_start_of_learning():
    """After a warm-up the cosine falls within twenty readings."""
    run = Run(steps=400)
    run.share = 0.05 + 0.65 / (1 + np.exp((np.arange(400) - 75) / 5))
    assert find(ConsistencyDrop, run) is None


def rarely(run, every=15):
    """After the first 100 steps gradients are heard now and then."""
    run.heard[100:] = np.arange(100, run.steps) % every == 0
    return run


def test_a_fall_between_rare_readings_while_the_loss_falls():
    run = Run(steps=1000)
    run.share = 0.02 + 0.7 / (1 + np.exp((np.arange(1000) - 300) / 5))
    run.loss *= np.exp(-np.maximum(0, np.arange(1000) - 250) / 200)[:, None]
    assert find(ConsistencyDrop, rarely(run)) is None


def test_a_drop_between_rare_readings():
    run = dropping(500)
    run.loss[:] = 2.0 + 0.01 * run.wobble[:, None]
    assert 500 < find(ConsistencyDrop, rarely(run)).first_step <= 640


def in_bursts(run):
    """64 readings in 640 steps, and one every 125 between."""
    step = np.arange(run.steps)
    run.heard = (step < 100) | (step % 125 == 0) | (step % 640 < 64)
    return run


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_decline_that_is_heard_in_bursts(seed):
    run = Run(steps=3000, seed=seed)
    run.share = np.linspace(0.53, -0.1, 3000)
    assert find(ConsistencyDrop, in_bursts(run)) is None


def test_a_sudden_drop_between_two_bursts():
    run = Run(steps=3000)
    run.share[:] = 0.3
    run.share[1500:] = -0.05
    assert 1500 < find(ConsistencyDrop, in_bursts(run)).first_step <= 2000


def test_a_suspicion_asks_for_more_readings():
    rule, run_state = ConsistencyDrop(), RunState()
    suspicious = []
    for record in (attempt(4), *dropping(80).records()):
        run_state.see(record)
        rule.see(record, run_state)
        suspicious.append(rule.suspicious)
    assert not any(suspicious[:81])
    assert suspicious[83]


def test_a_slow_fall():
    run = Run(steps=2000)
    run.share = 0.3 - 0.14e-3 * np.arange(2000)
    assert find(ConsistencyDrop, run) is None


def test_noise_around_zero():
    run = Run(steps=3000)
    run.share[:] = 0.02
    run.wobble *= 3
    assert find(ConsistencyDrop, run) is None


def test_a_drop_with_the_learning_rate():
    run = dropping(500)
    run.lr[500:] *= 0.1
    assert find(ConsistencyDrop, run) is None


def test_a_drop_with_smaller_batches():
    run = dropping(500)
    run.samples[500:] = 2
    assert find(ConsistencyDrop, run) is None


def test_a_drop_that_the_noise_predicts():
    run = dropping(500)
    run.extra = {"cos_expected": 0.01}
    assert find(ConsistencyDrop, run) is None


def test_resolves():
    run = dropping(500)
    run.share[600:] = 0.3
    assert find(ConsistencyDrop, run).state == "resolved"


def test_without_directions_there_is_nothing_to_check():
    rule = ConsistencyDrop()
    rule.see(StepRecord(1, 0, 0.0), RunState())
    assert rule.checks == 0


@pytest.mark.parametrize("seed", [8, 11])
def test_a_drop_within_the_error_of_two_averages(seed):
    run = Run(seed=seed, steps=560)
    run.share[:] = 0.085
    run.share[500:] = 0.036
    run.wobble *= 1.5
    run.extra = {"cos_expected": 0.08}
    assert find(ConsistencyDrop, run) is None
