import numpy as np
import pytest

from unisono.diagnose.rules.un408_dispersion_spike import DispersionSpike
from unit.diagnose.rules.streams import Run, find


def apart(since, until=None):
    """Half of the workers get harder data, the others easier."""
    run = Run()
    run.loss[since:until] *= np.array([0.5, 1.5, 0.5, 1.5])
    return run


def test_losses_move_apart():
    finding = find(DispersionSpike, apart(400))
    assert (finding.severity, finding.state, finding.ranks) == ("warning", "open", ())
    assert finding.first_step == 404


def test_resolves():
    assert find(DispersionSpike, apart(400, 450)).state == "resolved"


@pytest.mark.parametrize("steps", [1, 4])
def test_a_few_steps_are_not_enough(steps):
    assert find(DispersionSpike, apart(400, 400 + steps)) is None


def test_a_loss_that_jumps_as_a_whole():
    run = apart(400)
    run.loss[400:] *= 3
    assert find(DispersionSpike, run) is None


def test_losses_that_were_equal_and_differ_in_their_last_digits():
    run = Run()
    run.loss[:] = 2.0
    run.loss[400:, 0] += 1e-6
    assert find(DispersionSpike, run) is None


def test_a_new_attempt_makes_it_learn_again():
    run = apart(400)
    records = [record for record in run.records() if record.step < 400]
    later = Run(extra={"attempt": 2})
    later.loss *= np.array([0.5, 1.5, 0.5, 1.5])
    assert find(DispersionSpike, later, *records) is None


def test_no_further_apart_than_once_before():
    run = Run()
    run.loss[350] *= np.array([0.1, 1.9, 0.1, 1.9])
    run.loss[400:410] *= np.array([0.5, 1.5, 0.5, 1.5])
    assert find(DispersionSpike, run) is None


def test_a_mean_that_goes_through_zero():
    """As that of policy gradients does; the workers' losses are no further apart than before."""
    run = Run()
    run.loss = 0.3 + 0.2 * np.array([-1, 1, -1, 1]) + 0.01 * np.random.default_rng(0).standard_normal((1000, 4))
    run.loss[150:] -= np.minimum(1, np.arange(850) / 200)[:, None]
    assert find(DispersionSpike, run) is None


def test_it_stays_silent_of_losses_that_were_once_below_zero():
    run = apart(400)
    run.loss[50, 1] = -0.1
    run.lr[200:] *= 2
    assert find(DispersionSpike, run) is None


@pytest.mark.parametrize(("rises", "found"), [(1.0, False), (0.0, True)])
def test_a_dispersion_that_was_rising_already_has_not_jumped(rises, found):
    """Seen in a healthy job of two workers whose loss had begun to fall: five readings a little above all before."""
    run = Run()
    steps = np.arange(1000)
    spread = np.where(steps % 10 == 0, 0.06, np.where(steps % 2 == 0, 0.02, 0.01))
    spread *= 1 + rises * np.clip((steps - 300) / 100, 0, 1)
    spread[400:405] = 0.13
    run.loss[:] = 1 + spread[:, None] * np.array([-1, 1, -1, 1])
    assert (find(DispersionSpike, run) is not None) is found
