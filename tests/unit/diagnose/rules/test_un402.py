import numpy as np
import pytest

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un402_gradient_vanishing import GradientVanishing
from unisono.records import FactsRecord
from unit.diagnose.rules.streams import Run, attempt, causes, find, judge


def vanishing():
    run = Run()
    run.norm[300:] *= 1e-6
    run.loss[:] = 2.3
    return run


def test_vanished_and_nothing_learnt():
    finding = find(GradientVanishing, vanishing())
    assert (finding.severity, finding.first_step, finding.ranks) == ("warning", 300, ())
    assert causes(finding)[0] == "dead-layers"


def test_half_precision_suspects_underflow():
    finding = find(GradientVanishing, vanishing(), FactsRecord(1, 0, 0.0, "model", same={"dtype": "torch.float16"}))
    assert causes(finding)[0] == "underflow"


def test_a_gradient_that_is_zero():
    run = vanishing()
    run.norm[300:] = 0
    assert find(GradientVanishing, run) is not None


def test_a_gradient_that_shrinks_step_by_step_after_learning_is_success():
    run = vanishing()
    run.norm[200:300] *= np.logspace(0, -6, 100)[:, None]
    run.loss[200:] = 2.0
    assert find(GradientVanishing, run) is None


def stuck(heard=True, since=300):
    """Half of the loss is learnt when the gradient is lost, from one step to the next."""
    run = Run()
    run.loss[:] = np.linspace(2.3, 1.2, 1000)[:, None]
    run.loss[since:] = run.loss[since]
    run.norm[since:] *= 1e-8
    run.heard[:] = heard
    return run


@pytest.mark.parametrize("since", [40, 300])
def test_lost_at_once_and_stuck_above_the_floor(since):
    finding = find(GradientVanishing, stuck(since=since))
    assert (finding.severity, finding.first_step, finding.state) == ("warning", since, "open")
    assert finding.last_step > 900


def test_lost_between_two_readings_far_apart():
    time = np.arange(1000)
    finding = find(GradientVanishing, stuck((time < 100) | (time % 50 == 0)))
    assert finding.first_step == 300
    assert finding.last_step > 900


def test_a_lost_gradient_while_the_loss_goes_on_falling():
    run = stuck()
    run.loss[300:] = np.linspace(1.9, 0.2, 700)[:, None]
    assert find(GradientVanishing, run) is None


def test_the_mean_of_gradients_that_cancel_is_success():
    """At the floor of the loss each worker still pulls, and together they rest."""
    run = stuck()
    run.norm[300:] *= 1e8
    run.mean_norm = np.where(np.arange(1000) < 300, 1.0, 1e-9)
    assert find(GradientVanishing, run) is None


def tiny(loss=2.3):
    run = Run(steps=300)
    run.norm *= 3.5e-8
    run.loss[:] = loss
    return run


def test_near_zero_from_the_first_step():
    finding = find(GradientVanishing, tiny())
    assert (finding.severity, finding.first_step) == ("warning", 0)
    assert causes(finding)[0] == "initialisation"
    assert any("muP" in remedy for remedy in finding.remedies)


def test_a_small_unit_that_learns():
    run = tiny()
    run.loss *= np.linspace(1, 0.5, 300)[:, None]
    assert find(GradientVanishing, run) is None


def test_a_small_unit_that_has_learnt_and_is_resumed():
    """All losses have the weight 1e-7: at the plateau the gradient is as small as it always was."""
    run, resumed = tiny(), Run(steps=300, extra={"attempt": 2})
    run.loss[:] = np.linspace(1.99, 0.54, 300)[:, None]
    resumed.norm *= 3.5e-8
    resumed.loss[:] = 0.54
    assert judge(GradientVanishing, attempt(4), *run.records(), attempt(4, 2), *resumed.records()) is None


def test_a_small_unit_of_the_loss_itself():
    assert find(GradientVanishing, tiny(loss=2.3e-6)) is None


def test_slow_learning_with_gradients_as_usual():
    run = tiny()
    run.norm /= 3.5e-8
    assert find(GradientVanishing, run) is None


def test_nothing_to_learn_from_the_start():
    run = Run(steps=150)
    run.norm[:] = 0
    run.loss[:] = 0
    finding = find(GradientVanishing, run)
    assert (finding.severity, causes(finding)) == ("warning", ["constant-loss"])


def test_a_loss_that_is_always_zero_with_gradients_now_and_then():
    """Policy gradients of groups: the loss is zero by its making, and so is the gradient of equal rewards."""
    run = Run(steps=400)
    run.norm[np.random.default_rng(0).random(400) < 0.6] = 0
    run.loss[:] = 0
    assert find(GradientVanishing, run) is None


def test_nothing_to_learn_is_told_early():
    run = Run(steps=40)
    run.norm[:] = 0
    run.loss[:] = 0
    assert find(GradientVanishing, run).first_step == 30


def test_nothing_left_to_learn():
    """A hinge loss is exactly zero when all margins are met."""
    run = Run(steps=300)
    run.norm[15:] = 0
    run.loss[15:] = 0
    assert find(GradientVanishing, run) is None


def test_nothing_left_to_learn_after_a_restart():
    run = Run(steps=300)
    resumed = Run(steps=300, extra={"attempt": 2})
    resumed.norm[:] = 0
    resumed.loss[:] = 0
    assert judge(GradientVanishing, attempt(4), *run.records(), attempt(4, 2), *resumed.records()) is None


def test_a_small_reading_asks_for_closer_listening():
    run = stuck(np.arange(1000) % 50 == 0)
    run.heard[:100] = True
    rule, run_state, asked = GradientVanishing(), RunState(), []
    for record in run.records():
        run_state.see(record)
        rule.see(record, run_state)
        asked.append(rule.suspicious)
    assert asked.index(True) == 300
    assert not asked[-1]


def test_seven_hundred_steps_are_enough_to_say_that_all_is_well():
    run = Run(steps=700)
    run.heard[100:] = np.arange(100, 700) % 300 == 0
    rule, run_state = GradientVanishing(), RunState()
    for record in (attempt(4), *run.records()):
        run_state.see(record)
        rule.see(record, run_state)
    assert rule.checks > 0
    assert rule.case is None


def test_forty_readings_are_not_enough():
    run = Run()
    run.norm[300:340] *= 1e-6
    run.loss[:] = 2.3
    assert find(GradientVanishing, run) is None


def test_zero_from_the_very_first_step():
    run = Run(steps=100)
    run.norm[:] = 0
    run.loss[:] = 2.3
    finding = find(GradientVanishing, run)
    assert finding.first_step < 50
    assert causes(finding)[0] == "underflow"
    assert "zero at 50 of the last 50 readings" in finding.why


def test_most_workers_meet_their_margins():
    """Triplets and hinges: each batch is learnt or not, and there is something to learn somewhere at every step."""
    run = Run()
    idle = np.random.default_rng(0).random((1000, 4)) < 0.7
    idle[:100] = False
    idle[:, 0] = False
    run.loss[idle] = 0
    run.norm[idle] = 0
    assert find(GradientVanishing, run) is None


def test_all_workers_meet_their_margins_at_most_steps():
    run = Run()
    run.loss[200:] *= 0.02
    run.norm[200:] *= np.arange(200, 1000)[:, None] % 3 == 0
    assert find(GradientVanishing, run) is None


def test_zero_at_most_readings_although_the_loss_falls():
    run = Run()
    run.norm[300:] *= np.arange(300, 1000)[:, None] % 3 == 0
    assert find(GradientVanishing, run).evidence["zero_readings"] >= 33


def test_zero_at_some_readings():
    run = Run()
    run.norm[300::3] = 0
    assert find(GradientVanishing, run) is None


def test_zero_where_nothing_is_left_to_learn():
    run = Run()
    run.norm[500:] = 0
    run.loss[500:] *= 1e-4
    assert find(GradientVanishing, run) is None


def in_layers(*norms, since=0, steps=300):
    """Nothing is learnt; layer groups `first`, `middle` and `head` have these norms from a step on."""
    run = Run(steps=steps)
    run.loss[:] = 2.3
    run.group_norm = np.ones((steps, 3))
    run.group_norm[since:] = norms
    return run


def found_in_layers(run):
    return judge(GradientVanishing, attempt(4, groups=("first", "middle", "head")), *run.records())


def test_layers_that_nothing_gets_through_to():
    finding = found_in_layers(in_layers(1e-8, 1e-7, 1))
    assert (finding.severity, causes(finding)[0]) == ("warning", "initialisation")
    assert finding.evidence["where"] == "first, middle"
    assert finding.first_step <= 60


def test_rare_samples_that_reach_a_faint_layer():
    run = in_layers(1e-8, 1, 1)
    run.group_norm[::6, 0] = 1e-4
    assert found_in_layers(run).evidence["where"] == "first"
    run.group_norm[::3, 0] = 1e-4
    assert found_in_layers(run) is None


def test_a_gradient_that_fades_on_its_way_through_a_deep_model():
    run = Run(steps=300)
    run.loss[:] = 2.3
    run.group_norm = np.tile(np.logspace(-9, 0, 10), (300, 1))
    assert causes(found_in_layers(run))[0] == "architecture"


def test_layers_that_died_later():
    finding = found_in_layers(in_layers(1e-9, 1, 1, since=100))
    assert causes(finding)[0] == "dead-layers"
    assert 150 <= finding.first_step <= 170


def test_layers_after_half_precision():
    half = FactsRecord(1, 0, 0.0, "model", same={"dtype": "torch.float16"})
    finding = judge(GradientVanishing, attempt(4), half, *in_layers(1e-8, 1, 1).records())
    assert "underflow" in causes(finding)[:2]


def test_frozen_layers_are_silent():
    assert found_in_layers(in_layers(0, 0, 1)) is None


def test_layers_that_are_frozen_later_are_silent():
    """The loss of policy gradients does not fall, whatever is learnt."""
    assert found_in_layers(in_layers(0, 1, 1, since=100)) is None
    run = in_layers(1e-9, 1, 1)
    run.group_norm[30:, 0] = 0
    assert found_in_layers(run) is None


def test_layers_in_turn():
    """Five steps of a critic to one of its generator."""
    run = in_layers(0, 1, 1)
    run.group_norm[::6] = (1, 0, 1)
    assert found_in_layers(run) is None


def test_layers_that_wake_up():
    run = in_layers(1, 1, 1)
    run.group_norm[:30] = (1e-9, 0, 1)
    assert found_in_layers(run) is None


def test_one_small_layer_while_the_others_learn():
    run = in_layers(1e-7, 1, 1)
    run.loss *= np.linspace(1, 0.7, 300)[:, None]
    assert found_in_layers(run).evidence["where"] == "first"


def test_a_layer_that_is_no_longer_used_while_the_others_learn():
    run = in_layers(0, 1, 1, since=100)
    run.loss *= np.linspace(1, 0.7, 300)[:, None]
    assert found_in_layers(run) is None


def test_layers_of_different_size():
    assert found_in_layers(in_layers(1e-5, 1e-3, 1)) is None


def test_slow_learning_with_gradients():
    assert find(GradientVanishing, in_layers(1, 1, 1)) is None
