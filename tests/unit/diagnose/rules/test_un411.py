import numpy as np
import pytest

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un411_norm_dispersion import NormDispersion
from unit.diagnose.rules.streams import Run, causes, find


def apart(since, until=None):
    run = Run()
    run.norm[since:until] *= np.array([0.3, 1.7, 0.3, 1.7])
    return run


def test_norms_move_apart():
    finding = find(NormDispersion, apart(400))
    assert (finding.severity, finding.state, finding.ranks) == ("warning", "open", ())
    assert finding.first_step == 404


@pytest.mark.parametrize("steps", [1, 4])
def test_a_few_readings_are_not_enough(steps):
    assert find(NormDispersion, apart(400, 400 + steps)) is None


def test_norms_that_lay_apart_from_the_start():
    finding = find(NormDispersion, apart(0))
    assert (finding.severity, finding.state, finding.ranks) == ("warning", "open", ())
    assert finding.first_step < 64
    assert "ranks 1 and 3 have been" in finding.why
    assert causes(finding)[0] == "ranks-set-up-differently"


@pytest.mark.parametrize("until", [200, 600])
def test_norms_that_lay_apart_from_the_start_until_somebody_looked(until):
    finding = find(NormDispersion, apart(0, until))
    assert finding.state == "resolved"
    assert until <= finding.last_step < until + 100


def test_every_rank_has_a_norm_of_its_own():
    run = Run()
    run.norm *= np.array([1.0, 2.0, 4.0, 8.0])
    assert find(NormDispersion, run) is not None


def test_one_worker_apart_has_a_finding_of_its_own():
    run = Run()
    run.norm *= np.array([1.0, 1.0, 3.0, 1.0])
    assert find(NormDispersion, run) is None


@pytest.mark.parametrize("extra", [{"fresh": False}, {"compared": 0}])
def test_batches_of_which_nothing_is_known_or_that_repeat(extra):
    run = apart(0)
    run.extra = extra
    assert find(NormDispersion, run) is None


@pytest.mark.parametrize("seed", range(3))
def test_rare_large_samples_from_the_start(seed):
    run = Run(seed=seed, tails=2, noise=0.5)
    assert find(NormDispersion, run) is None


def test_norms_next_to_nothing_may_differ():
    run = apart(400)
    run.norm[400:] *= 0.01
    assert find(NormDispersion, run) is None


def test_resolves():
    assert find(NormDispersion, apart(400, 450)).state == "resolved"


def test_other_workers_after_a_restart():
    records = list(Run(workers=8).records())
    assert find(NormDispersion, apart(400), *records[:390]) is not None
    assert find(NormDispersion, Run(), *records) is None


def test_what_lasts_is_told_now_and_then():
    run = apart(400)
    rule, run_state = NormDispersion(), RunState()
    told = []
    for record in run.records():
        run_state.see(record)
        rule.see(record, run_state)
        told.append(rule.case.last_step if rule.case else None)
    assert sorted(set(told) - {None})[:3] == [404, 414, 424]


def learning(loss):
    """Ten times the dispersion, at readings every ten steps, of which the hundred before reach back to the start."""
    run = Run(workers=2, steps=300, noise=0.03)
    run.norm[170:] *= np.array([0.7, 1.3])
    run.loss[:] = 2.3
    run.loss[170:] = loss
    run.heard[100:] = np.arange(100, 300) % 10 == 0
    return run


def test_norms_that_differ_more_because_much_has_been_learnt_since():
    assert find(NormDispersion, learning(loss=2.0)) is not None
    assert find(NormDispersion, learning(loss=0.5)) is None
