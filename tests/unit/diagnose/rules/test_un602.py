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


def test_quiet():
    assert judge(GuardActed, step(1), note("missing", 2), note("acted", 1)) is None
