from unisono.diagnose.rules.un602_guard_acted import GuardActed
from unit.diagnose.rules.build import decision, judge, note, step


def test_acts_are_counted_by_what_was_done_and_when():
    found = judge(
        GuardActed,
        decision("skip", 2, at=5),
        decision("skip", 1, at=9),
        decision("roll-back, skip", at=812, to_step=700, reason="the norm is 120 times the recent one"),
    )
    assert (found.severity, found.first_step, found.last_step, found.ranks) == ("info", 5, 812, (1, 2))
    assert found.why == (
        "the guard acted 3 times: 3 steps skipped (steps 5, 9 and 812), 1 roll-back (step 812 back to 700), "
        "the last time because the norm is 120 times the recent one"
    )
    assert found.evidence == {"acts": 3, "skip": 3, "roll-back": 1}


def test_what_a_dry_run_would_have_done_is_told_apart():
    found = judge(GuardActed, decision("resync", at=5), decision("halt", at=9, dry=True))
    assert "acted once: 1 resync (step 5); would have acted once: 1 halt (step 9)" in found.why
    assert found.evidence == {"acts": 1, "would have acted": 1, "resync": 1, "would have halt": 1}


def test_a_dry_run_has_not_acted():
    found = judge(GuardActed, decision("skip", at=9, dry=True))
    assert found.why == (
        "the guard would have acted once: 1 step skipped (step 9), because rank 2's loss is not finite"
    )
    assert found.evidence["acts"] == 0


def test_acts_again_and_again_say_that_the_fault_lasts_and_how_to_have_the_job_stopped():
    acts = [decision("skip", at=at) for at in (5, 300, 700)]
    assert judge(GuardActed, *acts).causes == ()
    found = judge(GuardActed, *acts, decision("skip", at=1004))
    assert (found.severity, [cause.slug for cause in found.causes]) == ("info", ["fault-lasts"])
    assert "4 steps skipped (steps 5, 300, 700 and 1,004)" in found.why
    assert found.why.endswith("4 times and more within 1,000 steps")
    assert 'halt=["UN602"]' in found.remedies[-1]


def test_acts_far_from_each_other_and_clipping_are_no_lasting_fault():
    assert judge(GuardActed, *(decision("skip", at=400 * each) for each in range(9))).causes == ()
    assert judge(GuardActed, *(decision("clip", at=each) for each in range(9))).causes == ()


def test_roll_backs_that_are_used_up_are_told():
    acts = [decision("roll-back, skip", at=at, to_step=2) for at in (5, 6, 7)]
    found = judge(GuardActed, *acts, note("roll-backs-used-up", at=8, text="3 roll-backs did not help"))
    assert found.why.endswith("it rolls back no more: 3 roll-backs did not help")
    assert [cause.slug for cause in found.causes] == ["fault-lasts"]


def test_quiet():
    assert judge(GuardActed, step(1), note("missing", 2), note("acted", 1)) is None
