from unisono.diagnose.rules.un404_non_finite import NonFinite
from unit.diagnose.rules.build import attempt, decision, judge, step

WELL, ILL = (True,) * 4, (False,) * 4
FIRST = (True, False, True, True)


def test_the_first_is_named_not_those_it_poisoned():
    found = judge(NonFinite, step(0, finite_W=WELL), step(1, finite_W=FIRST), step(2, finite_W=ILL))
    assert (found.severity, found.ranks, found.first_step, found.last_step) == ("critical", (1,), 1, 2)
    assert found.causes[0].slug == "bad-sample"
    assert "rank 1 was not finite at step 1" in found.why


def test_all_at_once_is_nobodys():
    found = judge(NonFinite, step(1, finite_W=ILL), step(2, finite_W=ILL))
    assert (found.ranks, found.causes[0].slug) == ((), "learning-rate")


def test_the_evidence_itself_names_one_of_two():
    found = judge(NonFinite, step(1, finite_W=(True, False)), step(2, finite_W=(False, False)), world=2)
    assert found.ranks == (1,)


def test_the_last_step_of_a_run_is_critical():
    assert judge(NonFinite, step(1, finite_W=FIRST)).severity == "critical"


def test_a_single_step_is_a_warning_and_resolves():
    found = judge(NonFinite, step(1, finite_W=FIRST), *(step(n, finite_W=WELL) for n in (2, 3, 4)))
    assert (found.severity, found.state, found.ranks) == ("warning", "resolved", (1,))


def test_single_steps_on_several_ranks_name_them_all():
    records = step(1, finite_W=FIRST), step(2, finite_W=WELL), step(3, finite_W=FIRST[::-1]), step(4, finite_W=WELL)
    found = judge(NonFinite, *records)
    assert (found.severity, found.ranks) == ("warning", (1, 2))


def test_two_steps_in_a_row_stay_critical():
    records = step(1, finite_W=FIRST), step(2, finite_W=FIRST), *(step(n, finite_W=WELL) for n in (3, 4, 5))
    assert judge(NonFinite, *records).severity == "critical"


def test_steps_that_the_loss_scaler_skips_are_healthy():
    assert judge(NonFinite, step(1, finite_W=ILL, skipped=True), step(2, finite_W=WELL)) is None


def test_silent_ranks_are_healthy():
    assert judge(NonFinite, step(1, finite_W=(True, None, True, True)), step(2)) is None


def test_a_silent_rank_does_not_make_a_fault_somebodys():
    assert judge(NonFinite, step(1, finite_W=(False, None, False, False))).ranks == ()


LEFT_OUT = {"kept_workers": 3, "weight_W": (1 / 3, 0.0, 1 / 3, 1 / 3)}


def test_what_steering_left_out_is_a_warning_and_says_so():
    found = judge(NonFinite, *(step(number, finite_W=FIRST, **LEFT_OUT) for number in range(5)))
    assert (found.severity, found.state, found.ranks) == ("warning", "open", (1,))
    assert "rank 1 was not finite at step 4, the last of 5 such steps; steering left it out" in found.why
    assert found.evidence == {"left_out_steps": 5}


def test_what_steering_left_out_is_over_when_it_is_finite_again():
    well = (step(number, finite_W=WELL, kept_workers=4) for number in (2, 3, 4))
    assert judge(NonFinite, step(1, finite_W=FIRST, **LEFT_OUT), *well).state == "resolved"


def test_what_steering_let_through_is_as_grave_as_ever():
    others = {"kept_workers": 3, "weight_W": (0.0, 1 / 3, 1 / 3, 1 / 3)}
    records = [step(number, finite_W=FIRST, **others) for number in (1, 2)]
    assert judge(NonFinite, *records).severity == "critical"
    assert judge(NonFinite, *(step(number, finite_W=FIRST, kept_workers=4) for number in (1, 2))).severity == "critical"


def test_nobody_kept_and_yet_a_step_is_as_grave_as_ever():
    assert judge(NonFinite, *(step(number, finite_W=ILL, kept_workers=0) for number in (1, 2))).severity == "critical"


def test_a_step_that_steering_skips_has_harmed_nobody():
    assert judge(NonFinite, step(1, finite_W=FIRST, kept_workers=0, skipped=True), step(2, finite_W=WELL)) is None


def test_in_large_worlds_the_number_of_kept_workers_decides():
    finite_W = (*(True,) * 99, False)
    assert judge(NonFinite, step(1, finite_W=finite_W, kept_workers=99), world=100).severity == "warning"
    assert judge(NonFinite, step(1, finite_W=finite_W, kept_workers=100), world=100).severity == "critical"


def kept_away(count):
    """Decisions are written down at once, steps later."""
    skips = [decision("skip", 1, at=at) for at in range(1, 1 + count)]
    return *skips, *(step(at, finite_W=FIRST, skipped=True) for at in range(1, 1 + count))


def test_every_step_that_the_guard_skipped_is_told_of():
    found = judge(NonFinite, *kept_away(7))
    assert (found.severity, found.first_step, found.last_step, found.ranks) == ("warning", 1, 7, (1,))
    assert found.evidence["left_out_steps"] == 7


def test_training_that_stands_still_is_critical_although_nothing_was_spread():
    found = judge(NonFinite, *kept_away(20))
    assert found.severity == "critical"
    assert found.why.endswith("training has stood still for 20 steps")
    apart = [one for n in range(0, 60, 2) for one in (*kept_away_at(n), step(n + 1, finite_W=WELL))]
    assert judge(NonFinite, *apart).severity == "warning"


def test_what_the_guard_skipped_before_a_restart_says_nothing_of_the_steps_after_it():
    found = judge(NonFinite, *kept_away(7), attempt(number=2), *(step(at, finite_W=FIRST) for at in range(3, 6)))
    assert (found.severity, found.last_step) == ("critical", 7)
    assert "the last of 7" in found.why
    still = *kept_away(19), attempt(number=2), *kept_away_at(3)
    assert judge(NonFinite, *still).severity == "warning"


def kept_away_at(at):
    return decision("skip", 1, at=at), step(at, finite_W=FIRST, skipped=True)
