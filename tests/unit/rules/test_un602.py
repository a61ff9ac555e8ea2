from unisono.rules.un602_guard_acted import GuardActed
from unit.rules.build import judge, note, step


def test_acts_are_counted():
    found = judge(GuardActed, note("acted", text="skipped step 5"), note("acted", at=9, text="skipped step 9"))
    assert (found.severity, found.first_step, found.last_step) == ("info", 5, 9)
    assert (found.why, found.evidence["acts"]) == ("skipped step 9", 2)


def test_quiet():
    assert judge(GuardActed, step(1), note("missing", 2)) is None
