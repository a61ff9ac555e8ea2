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
