"""No statistical rule says more than a remark about a healthy run, whatever its noise."""

import numpy as np
import pytest

from unisono.diagnose.rules import RULES
from unisono.diagnose.rules.shared.run_state import RunState
from unit.diagnose.rules.streams import Run, attempt

STATISTICAL = {f"UN{n}" for n in (104, 105, 401, 402, 403, 405, 406, 407, 408, 409, 410, 411, 501, 503)}
REMARKS = {"UN104", "UN401", "UN405"}
"""With heavy tails single batches stand out, and a run that has learnt all it can is mostly noise."""


def learning_rate_drop(run):
    run.lr[3500:] *= 0.1
    run.loss[3500:] *= 0.6
    run.norm[3500:] *= 2
    run.share[3500:] *= 0.3


def warm_up(run):
    time = np.arange(run.steps)
    run.lr = np.minimum(time + 1, 2000) / 2000 * 1e-3
    run.norm *= (1 + 5 * np.exp(-(((time - 100) / 60) ** 2)))[:, None]


def short_last_batches(run):
    run.samples[::97] = 1
    run.loss[::97] *= np.random.default_rng(7).uniform(0.1, 10, run.loss[::97].shape)
    run.norm[::97] *= np.random.default_rng(8).uniform(0.1, 10, run.loss[::97].shape)


def loss_scaler(run):
    run.skipped[::500] = True
    run.finite[1::500] = False
    for number in (0, 1):
        run.loss[number::500] *= 100
        run.norm[number::500, 0] *= 1000


def larger_batches(run):
    run.samples[3000:] *= 4
    run.share[3000:] *= 3
    run.norm[3000:] *= 0.5


def nothing(run):
    pass


EVENTS = (nothing, learning_rate_drop, warm_up, short_last_batches, loss_scaler, larger_batches)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_healthy_runs_are_quiet(event):
    number = EVENTS.index(event)
    run = Run(workers=(4, 8, 2, 4, 3, 2)[number], steps=7_000, seed=number, tails=4 if number % 2 else None)
    event(run)
    found = findings(run)
    assert [(one.code, one.why) for one in found if one.at_least("warning")] == []
    assert {one.code for one in found} <= REMARKS


def findings(run):
    return [found for rule in rules_after(run) if (found := rule.finding(RunState()))]


def rules_after(run):
    run_state, rules = RunState(), [rule() for rule in RULES if rule.code in STATISTICAL]
    for record in (attempt(run.workers), *run.records()):
        run_state.see(record)
        for rule in rules:
            rule.see(record, run_state)
    return rules


def test_all_statistical_rules_were_asked():
    assert {rule.code for rule in rules_after(Run(workers=3, steps=2500)) if rule.checks} == STATISTICAL


def test_everybody_overfits_a_batch_of_its_own():
    """Losses and norms then differ for ever and hardly change: nobody is an outlier."""
    run = Run(workers=3, steps=2000, noise=1e-3)
    run.loss *= np.array([1.0, 1.1, 3.0])
    run.norm *= np.array([1.0, 0.9, 4.0])
    run.extra = {"fresh": False}
    assert findings(run) == []
    run.extra = {"compared": 0}
    assert findings(run) == []


def test_two_workers_that_overfit_and_say_nothing_of_their_batches():
    run = Run(workers=2, steps=2000, noise=1e-3)
    run.loss *= np.array([1.0, 3.0])
    run.norm *= np.array([1.0, 4.0])
    run.extra = {"compared": 0}
    assert findings(run) == []
