import numpy as np
import pytest

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un411_norm_dispersion import NormDispersion
from unit.diagnose.rules.streams import Run, find


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


def test_norms_that_always_lay_apart():
    assert find(NormDispersion, apart(0)) is None


def test_resolves():
    assert find(NormDispersion, apart(400, 450)).state == "resolved"


def test_other_workers_after_a_restart():
    records = list(Run(workers=8).records())
    assert find(NormDispersion, apart(0), *records) is None


def test_what_lasts_is_told_now_and_then():
    run = apart(400)
    rule, run_state = NormDispersion(), RunState()
    told = []
    for record in run.records():
        run_state.see(record)
        rule.see(record, run_state)
        told.append(rule.case.last_step if rule.case else None)
    assert sorted(set(told) - {None})[:3] == [404, 414, 424]
