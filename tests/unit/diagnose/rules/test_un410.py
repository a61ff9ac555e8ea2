import numpy as np
import pytest

from unisono.diagnose.engine import diagnose
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un410_walk_of_averages import WalkOfAverages
from unit.diagnose.rules.streams import Run, attempt, causes, find

STEPS, ONSET = 1500, 700
TIME = np.arange(STEPS)[:, None]


def walking(fall=1e-3, doubles_in=500, spread=None, lasting=False, **extra):
    """A loss that falls, and a dispersion that doubles from step 700 on."""
    run = Run(steps=STEPS, extra=extra)
    noise = np.random.default_rng(0).standard_normal((STEPS, 4))
    if spread is None:
        spread = 0.05 * 2.0 ** (np.maximum(0, TIME - ONSET) / doubles_in)
    own = np.where(TIME < ONSET, noise, [1.2, -1.2, 0.8, -0.8]) if lasting else noise
    run.loss = np.maximum(1e-3, 2.0 * np.exp(-fall * TIME) + spread * own)
    return run


def test_the_mean_falls_and_the_workers_drift_apart():
    finding = find(WalkOfAverages, walking())
    assert (finding.severity, finding.ranks, finding.pattern) == ("warning", (), "Critical Warning")
    assert "pause and audit" in finding.why
    assert causes(finding)[0] == "not-shuffled"
    assert all("pause" in remedy for remedy in finding.remedies[:1])


@pytest.mark.parametrize("fall", [2e-4, 1e-3, 2e-3])
def test_within_500_steps_of_an_onset_that_doubles_it_in_500(fall):
    assert ONSET < find(WalkOfAverages, walking(fall)).first_step <= ONSET + 500


def test_learning_that_begins_late_takes_the_workers_apart():
    run = walking()
    begun = np.maximum(0, TIME - 500)
    spread = 0.02 * (1 + np.minimum(1.2, begun / 250))
    run.loss = 2.0 * np.exp(-2e-4 * TIME - 2e-3 * begun) + spread * np.random.default_rng(0).standard_normal((STEPS, 4))
    assert find(WalkOfAverages, run) is None


def test_a_slow_rise_under_a_slow_fall():
    run, time = Run(steps=3000), np.arange(3000)[:, None]
    noise = np.random.default_rng(0).standard_normal((3000, 4))
    run.loss = 2.0 * np.exp(-1e-4 * time) + 0.05 * np.exp(time / 1200) * noise
    assert find(WalkOfAverages, run).first_step < 2500


def test_workers_that_stay_apart_need_no_level_before():
    """Also where the dispersion rises from the first step on."""
    run = walking(spread=0.02 + 2e-4 * TIME, lasting=False)
    run.loss = 2.0 * np.exp(-1e-3 * TIME) + 3e-4 * TIME * [1.0, -1.0, 0.5, -0.5] + 0.01 * run.loss
    assert causes(find(WalkOfAverages, run))[0] == "data-drift"


def test_critical_where_the_weights_differ():
    finding = find(WalkOfAverages, walking(audits=("weights",), weights_W=(0, 0, 2, 0)))
    assert finding.severity == "critical"
    assert causes(finding) == ["replicas-differ"]


@pytest.mark.parametrize(("code", "severity"), [("UN102", "critical"), ("UN503", "warning")])
def test_critical_where_another_check_confirms_it(code, severity):
    run_state, rule = RunState(), WalkOfAverages()
    for record in (attempt(4), *walking().records()):
        run_state.see(record)
        run_state.hold(code)
        rule.see(record, run_state)
    assert rule.finding(run_state).severity == severity


def test_one_harder_shard_is_one_finding():
    run = Run(steps=STEPS)
    random = np.random.default_rng(0).standard_normal((STEPS, 4))
    apart = [0.0, 0.0, 1.0, 0.0] * (0.15 + 4e-4 * TIME)
    run.loss = 2.0 * np.exp(-1e-3 * TIME) * np.exp(0.02 * random) + apart
    assert find(WalkOfAverages, run) is not None
    (leading,) = [one for one in diagnose([attempt(4), *run.records()]).findings() if one.at_least("warning")]
    assert (leading.code, leading.ranks) == ("UN105", (2,))
    assert "UN410" in leading.evidence["symptoms"]


@pytest.mark.parametrize(
    "healthy",
    [
        {"fall": 0.0},
        {"spread": 0.2 * np.exp(-1e-3 * TIME)},
        {"spread": 0.05 + 0 * TIME},
        {"fall": 3e-3, "spread": 0.02 * np.exp(-1e-3 * TIME)},
        {"spread": 0.02 + 0.2 * (1 - np.exp(-TIME / 500))},
        {"fall": 4e-3, "spread": 0.05 * np.sqrt(np.exp(-4e-3 * TIME))},
    ],
    ids=["no fall", "falls too", "level", "relative rise", "early rise", "learnt by heart"],
)
def test_dispersion_that_rises_healthily(healthy):
    assert find(WalkOfAverages, walking(**healthy)) is None


def test_losses_around_zero():
    """As those of policy gradients: of the steps at which the mean happens to be above zero nothing can be learnt."""
    random, run = np.random.default_rng(0), Run(steps=3000)
    time = np.arange(3000)[:, None]
    common, own = 0.1 * random.standard_normal((3000, 1)), random.standard_normal((3000, 4))
    run.loss = 0.3 * np.exp(-time / 800) + common + 0.05 * np.exp(time / 1200) * own
    assert find(WalkOfAverages, run) is None


def test_heavy_tails():
    run = Run(steps=4000, tails=2.5)
    run.loss = (2.0 * np.exp(-3e-4 * np.arange(4000)))[:, None] * run.loss / run.loss.mean(axis=1, keepdims=True)
    assert find(WalkOfAverages, run) is None


def test_harder_data_for_everybody():
    run = walking(spread=0.05 + 0 * TIME)
    run.loss[ONSET:] *= 3
    assert find(WalkOfAverages, run) is None


def test_a_sudden_change_of_the_learning_rate():
    run = walking(spread=np.where(TIME < ONSET, 0.05, 0.15))
    assert find(WalkOfAverages, run) is not None
    run.lr[ONSET:] *= 0.1
    assert find(WalkOfAverages, run) is None


def test_neighbours_of_one_class():
    """Workers that differ for some steps, one after the other, do not stay apart."""
    run = walking()
    kinds = np.random.default_rng(1).standard_normal((STEPS // 10, 4)).repeat(10, axis=0)
    run.loss = 2.0 * np.exp(-1e-3 * TIME) + (0.01 + 0.1 * (1 - np.exp(-TIME / 400))) * kinds
    assert find(WalkOfAverages, run) is None


def test_losses_that_were_exactly_equal():
    run = walking()
    run.loss[:ONSET] = run.loss[:ONSET].mean(axis=1, keepdims=True)
    assert find(WalkOfAverages, run) is not None


@pytest.mark.parametrize(("later", "state"), [(1.0, "open"), (0.3, "resolved")])
def test_it_is_over_when_the_workers_agree_again_and_not_when_the_mean_stops_falling(later, state):
    run = walking(lasting=True)
    apart = run.loss[1299] - run.loss[1299].mean()
    more = Run(steps=2500)
    more.loss[:STEPS], more.loss[1300:] = run.loss, run.loss[1299].mean() + apart * later
    more.loss[1300:] += 0.01 * np.random.default_rng(1).standard_normal((1200, 4))
    finding = find(WalkOfAverages, more)
    assert (finding.first_step < 1300, finding.state) == (True, state)
