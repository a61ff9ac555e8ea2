from dataclasses import replace

import numpy as np
import pytest

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un403_gradient_oscillation import GradientOscillation
from unisono.records import FactsRecord
from unit.diagnose.rules.streams import Run, attempt, causes, find, judge


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


def losses_swinging(since, heard):
    run = Run()
    run.loss[since::2] *= 3
    run.heard[:] = heard
    return run


def test_the_loss_tells_where_the_norm_is_not_heard():
    heard = np.arange(1000) % 20 == 0
    finding = find(GradientOscillation, losses_swinging(600, heard))
    assert (finding.severity, finding.state) == ("warning", "open")
    assert 600 <= finding.first_step <= 670
    assert "mean loss goes up and down" in finding.why


def test_the_norm_counts_where_it_is_heard():
    assert find(GradientOscillation, losses_swinging(600, True)) is None


def test_noise_of_the_loss_does_not_alternate():
    run = losses_swinging(1000, False)
    run.loss[500:] *= np.exp(np.random.default_rng(0).standard_normal(500))[:, None]
    assert find(GradientOscillation, run) is None


def test_a_burst_is_too_short_for_the_norm():
    run = losses_swinging(600, False)
    run.heard[500:564] = run.heard[800:864] = True
    assert "mean loss" in find(GradientOscillation, run).why


def at_the_edge(rate=10.0):
    """From step 400 on all workers' losses swing together, above what they were, while the rate rises."""
    run = Run(noise=0.05)
    swing = np.exp(0.5 * np.random.default_rng(0).standard_normal(600))[:, None]
    run.loss[400:] *= 2 * swing
    run.norm[400:] *= 4 * swing
    run.lr[400:] *= np.minimum(rate, 1.4 ** np.arange(600))
    return run


def test_the_edge_of_stability():
    finding = find(GradientOscillation, at_the_edge())
    assert (finding.severity, finding.state) == ("warning", "open")
    assert causes(finding) == ["learning-rate"]
    assert 400 <= finding.first_step <= 500
    assert "at a learning rate of 0.01" in finding.why


def test_the_edge_of_stability_by_the_losses_alone():
    run = at_the_edge()
    run.heard[100:] = False
    assert "the gradient norm was not heard" in find(GradientOscillation, run).why


def test_heavy_momentum():
    numbers = FactsRecord(1, 0, 0.0, "optimizer", same={"numbers": "dampening=0 momentum=0.99 nesterov=0"})
    assert causes(find(GradientOscillation, at_the_edge(), numbers))[0] == "momentum"


def test_harder_data_swing_by_themselves_and_at_the_same_rate():
    assert find(GradientOscillation, at_the_edge(rate=1.0)) is None


def test_a_higher_rate_that_the_training_bears():
    """Cyclic rates: the loss rises a little, and no more shakily than its batches."""
    run = Run()
    run.lr[400:] *= np.minimum(30, 1.4 ** np.arange(600))
    run.loss[400:] *= 1.5
    run.norm[400:] *= 3
    assert find(GradientOscillation, run) is None


def test_workers_that_draw_the_same_lengths_swing_together_from_the_start():
    """A curriculum of tasks in lockstep, which become harder while the rate is warmed up."""
    run = at_the_edge()
    run.loss[:400] *= np.exp(0.5 * np.random.default_rng(1).standard_normal(400))[:, None]
    assert find(GradientOscillation, run) is None


def test_a_rate_that_jumps_is_meant_to():
    """A warm restart: the loss is above its best for some hundred steps, and comes down in waves."""
    run = at_the_edge()
    run.lr[400:] = 1e-2
    assert find(GradientOscillation, run) is None


def test_a_jump_at_a_step_that_was_skipped():
    run = at_the_edge()
    run.lr[400:] = 1e-2
    run.skipped[400] = True
    assert find(GradientOscillation, run) is None


def rising(losses):
    """While the rate is warmed up, with large batches: hardly any noise, and norms that differ."""
    run = Run(workers=8)
    random = np.random.default_rng(0)
    run.lr *= np.linspace(0.001, 1, 1000)
    run.loss = losses[:, None] * np.exp(0.01 * random.standard_normal((1000, 8)))
    run.norm *= np.exp(0.5 * random.standard_normal((1000, 1)))
    return run


def test_a_loss_that_rises_during_the_warm_up_does_not_swing():
    """The weight of a second term is raised, or what is trained against becomes better."""
    assert find(GradientOscillation, rising(np.linspace(60, 120, 1000))) is None
    assert find(GradientOscillation, rising(120 - 60 * np.exp(-np.arange(1000) / 300))) is None


def in_noise(falls=0.0):
    """Batches of one sample: losses and norms over orders of magnitude, each worker for itself."""
    run = Run(workers=2, steps=1200)
    random = np.random.default_rng(1)
    run.loss = np.exp(2.5 * random.standard_normal((1200, 2)) - 3) * np.exp(-falls * np.arange(1200))[:, None]
    run.loss[:20] = 2.3
    run.mean_norm = np.exp(1.5 * random.standard_normal(1200))
    return run


def test_batches_that_are_too_small():
    finding = find(GradientOscillation, in_noise())
    assert (finding.severity, causes(finding)[0]) == ("info", "small-batch")
    assert "no lower than before" in finding.why


@pytest.mark.parametrize("swings", [False, True])
def test_a_remark_on_small_batches_and_what_is_graver(swings):
    run = in_noise()
    rule, run_state = GradientOscillation(), RunState()
    rule.report(100, run_state, why="small batches", causes={"small-batch": 0.8}, severity="info")
    for record in (attempt(4), *(swinging(500) if swings else at_the_edge()).records()):
        run_state.see(record)
        rule.see(record, run_state)
    finding = rule.finding(run_state)
    assert (finding.severity, finding.first_step >= 400, causes(finding)[0]) == ("warning", True, "learning-rate")
    for record in (replace(attempt(2, 2), first_step=0), *(replace(one, attempt=2) for one in run.records())):
        run_state.see(record)
        rule.see(record, run_state)
    assert "no lower than before" not in rule.finding(run_state).why


def test_small_batches_while_the_loss_falls():
    assert find(GradientOscillation, in_noise(falls=0.003)) is None


def learnt_and_resumed(first=0.01):
    """Its second attempt is as noisy as its first, at a 200th of the loss that the run began with."""
    before, after = in_noise(), in_noise()
    before.loss = 2 * np.exp(-np.arange(1200) / 100)[:, None] + 0.01 * before.loss
    after.loss *= first
    return before, after


def test_a_resumed_run_with_little_left_to_learn():
    before, after = learnt_and_resumed()
    again = replace(attempt(2, 2), first_step=1200)
    resumed = [replace(record, attempt=2, step=record.step + 1200) for record in after.records()]
    assert judge(GradientOscillation, attempt(2), *before.records(), again, *resumed) is None
    assert judge(GradientOscillation, again, *resumed) is None, "where nobody heard how it began"
    assert judge(GradientOscillation, attempt(2), *after.records()) is not None, "a run of its own"


@pytest.mark.parametrize("mean", [0.0, -0.02, -1.0])
def test_losses_around_zero_or_below(mean):
    """As those of policy gradients: of them no factor can be told."""
    run = in_noise()
    run.loss = mean + 0.05 * np.random.default_rng(3).standard_normal((1200, 2))
    assert find(GradientOscillation, run) is None
    run.heard[100:] = False
    assert find(GradientOscillation, run) is None


def test_a_best_loss_around_zero_says_nothing_of_the_edge():
    run = at_the_edge()
    run.loss[:400] = 0.01 + 0.05 * np.random.default_rng(3).standard_normal((400, 4))
    assert find(GradientOscillation, run) is None


def test_easy_and_hard_batches_in_turn():
    """Together for all workers, from the start, and the loss falls."""
    run = Run()
    run.loss[::2] *= 0.01
    run.norm[::2] *= 0.05
    assert find(GradientOscillation, run) is None


def test_swinging_losses_ask_for_closer_listening():
    run = at_the_edge()
    run.heard[100:] = False
    rule, run_state, asked = GradientOscillation(), RunState(), []
    for record in run.records():
        run_state.see(record)
        rule.see(record, run_state)
        asked.append(rule.suspicious)
    assert 500 <= asked.index(True) < 600


@pytest.mark.parametrize("run", [at_the_edge(), in_noise()], ids=["edge", "noise"])
def test_what_closer_listening_brings_is_waited_for(run):
    """The norms turn out to be calm."""
    rule, run_state = GradientOscillation(), RunState()
    run_state.see(attempt(run.workers))
    run.mean_norm = np.full(run.steps, 1.0)
    run.heard[100:] = False
    for step, record in enumerate(run.records()):
        run_state.see(record)
        rule.see(record, run_state)
        if rule.suspicious:
            run.heard[step + 1 : step + 65] = True
    assert run.heard[100:].any()
    assert rule.case is None
