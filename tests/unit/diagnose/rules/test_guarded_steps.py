"""What the guard kept from training is told by the rule it belongs to."""

import pytest

from unisono.diagnose.rules.un104_toxic_batch import ToxicBatch
from unisono.diagnose.rules.un401_gradient_explosion import GradientExplosion
from unisono.diagnose.rules.un404_non_finite import NonFinite
from unit.diagnose.rules.build import decision, judge, step, watch

MEASURES = {GradientExplosion: "norm_ratio", ToxicBatch: "loss_score"}


@pytest.mark.parametrize("rule", MEASURES)
def test_what_the_guard_skipped_is_a_warning_with_its_reason(rule):
    found = judge(rule, decision("skip", 1, at=9, reason="far too large", evidence={MEASURES[rule]: 90.0}))
    assert (found.severity, found.first_step, found.ranks) == ("warning", 9, (1,))
    assert found.why.startswith("far too large; the guard skipped on all workers")


def test_an_explosion_that_stopped_the_job_is_critical():
    found = judge(GradientExplosion, decision("halt", at=9, evidence={"norm_ratio": 90.0}))
    assert found.severity == "critical"
    assert "the guard stopped the job" in found.why


def test_steps_that_are_written_down_later_do_not_heal_it():
    rule, run_state = watch(GradientExplosion, decision("skip", at=90, evidence={"norm_ratio": 90.0}))
    for number in range(20, 90):
        rule.passed(number)
    assert rule.finding(run_state).state == "open"
    for number in range(91, 200):
        rule.passed(number)
    assert rule.finding(run_state).state == "resolved"


@pytest.mark.parametrize("rule", MEASURES)
def test_a_dry_run_and_other_reasons_are_not_told_here(rule):
    dry = decision("skip", at=9, dry=True, evidence={MEASURES[rule]: 90.0})
    assert judge(rule, dry, decision("skip", at=12)) is None


def test_a_step_that_is_not_finite_and_skipped_by_the_guard_is_a_warning():
    found = judge(NonFinite, decision("skip", 1, at=9), step(9, skipped=True, finite_W=(True, False)))
    assert (found.severity, found.ranks) == ("warning", (1,))
    assert "the guard skipped the step" in found.why


def test_what_a_loss_scaler_skips_is_nothing_to_tell():
    assert judge(NonFinite, decision("skip", 1, at=8), step(9, skipped=True, finite_W=(True, False))) is None


def test_a_job_stopped_by_what_is_not_finite_is_critical():
    found = judge(NonFinite, decision("halt", 1, at=9, reason="3 actions did not help: rank 1's loss is not finite"))
    assert (found.severity, found.ranks) == ("critical", (1,))
