"""Which row acts when: confirmation, cool-down, budget, dry run, and the rows that come with unisono."""

import json
import math
from dataclasses import replace

import pytest

from unisono.act.guard.options import guard
from unisono.act.guard.policy import Decision, Policy, Reason
from unisono.act.guard.step_state import Watch
from unisono.common.errors import UserError
from unisono.policy import Row, Situation
from unisono.records.finding import Finding

NAN, INF = math.nan, math.inf
CALM = Situation(
    step=100,
    loss_W=(1.0,) * 4,
    finite_W=(True,) * 4,
    norm=1.0,
    norm_ratio=0.8,
    loss_score_W=(0.0,) * 4,
    recent_norm=1.0,
    ranks=(0, 1, 2, 3),
)


def finding(code="UN301", severity="critical", state="open", first=40, last=90, ranks=(2,)):
    return Finding(code, "slug", "title", severity, state, first, last, ranks, (), "why", {}, (), (), None)


def always(now):
    return "it is so"


def decided(asked, **changes):
    return asked.policy().decide(replace(CALM, **changes))


def acts(policy, steps, **changes):
    """For each step what was done."""
    return [
        None if decision is None else "+".join(decision.actions)
        for decision in (policy.decide(replace(CALM, step=step, **changes)) for step in steps)
    ]


def test_a_calm_step_is_left_alone_whatever_was_asked_for():
    asked = guard(clip=2.0, rollback=True, resync=500, reset_momentum=True, halt=True, reseed=True)
    assert decided(asked) is None


def test_the_first_row_that_holds_counts():
    policy = Policy([Row("never", lambda now: None, "halt"), Row("a", always, "resync"), Row("b", always, "skip")])
    decision = policy.decide(CALM)
    assert (decision.row, decision.actions, decision.reason) == ("a", ("resync",), "it is so")


def test_a_row_may_act_alongside_one_that_lets_the_step_happen():
    clip = Row("clip", lambda now: Reason("large", argument=0.5), "clip", counted=False, alongside=True)
    both = Policy([Row("a", always, "resync"), clip]).decide(CALM)
    assert (both.actions, both.row, both.argument) == (("resync", "clip"), "a, clip", 0.5)
    assert Policy([Row("a", always, "skip"), clip]).decide(CALM).actions == ("skip",)


def test_confirmation_takes_steps_in_a_row():
    policy = Policy([Row("a", lambda now: "hot" if now.norm > 5 else None, "resync", confirm=3)])
    norms = [9, 9, 1, 9, 9, 9]
    done = [policy.decide(replace(CALM, step=step, norm=norm)) is not None for step, norm in enumerate(norms)]
    assert done == [False] * 5 + [True]


def test_a_row_counts_its_steps_while_another_one_acts():
    first = Row("first", lambda now: "a" if now.step < 12 else None, "resync", counted=False)
    policy = Policy([first, Row("second", always, "reseed", confirm=3)])
    assert acts(policy, (10, 11, 12)) == ["resync", "resync", "reseed"]


def test_a_row_rests_for_its_cool_down():
    policy = Policy([Row("a", always, "resync", cool_down=3, counted=False)])
    assert acts(policy, range(10, 19)) == ["resync", None, None, None, "resync", None, None, None, "resync"]


def test_evidence_from_before_the_last_action_has_been_acted_on():
    asked = guard(resync=True).policy()
    assert acts(asked, (100,), findings=(finding(last=90),)) == ["resync"]
    assert acts(asked, (150, 151), findings=(finding(last=100),)) == [None, None]
    assert acts(asked, (152,), findings=(finding(last=140),)) == ["resync"]


LASTING = {
    "skip": (guard(), {"norm": NAN}),
    "reset-momentum+skip": (guard(reset_momentum=1), {"norm": NAN}),
    "resync": (guard(resync=5), {"since_check": 5}),
    "reseed": (guard(reseed=True, budget=0), {"findings": (finding("UN201", last=10**6),)}),
}


@pytest.mark.parametrize("does", LASTING)
def test_what_is_asked_for_goes_on_for_as_long_as_the_fault_lasts(does):
    asked, fault = LASTING[does]
    assert acts(asked.policy(), range(100, 1100, 20), **fault) == [does] * 50


def test_replicas_that_are_found_to_differ_again_and_again_are_made_equal_again_and_again():
    policy = guard(resync=True).policy()
    done = [acts(policy, (step,), findings=(finding(last=step - 1),)) for step in range(100, 1100, 20)]
    assert done == [["resync"]] * 50


BACK = {"norm": 1e5, "norm_ratio": 5000.0, "restorable": (20,)}


def test_there_are_so_many_roll_backs_in_a_stretch_of_steps_and_the_step_is_skipped_without():
    policy, back = guard(rollback=True).policy(), "roll-back+skip"
    assert acts(policy, (100, 400, 800), **BACK) == [back] * 3
    assert policy.used_up == ""
    assert acts(policy, (900,), **BACK) == ["skip"]
    assert policy.used_up == (
        "3 roll-backs in the last 1,000 steps did not help: the gradient's norm is 1e+05; usually it is at most 20; "
        "there are no more of them before step 1,100"
    )
    said = policy.used_up
    assert acts(policy, (1099, 1100, 1101), **BACK | {"norm_ratio": 4000.0}) == ["skip", back, "skip"]
    assert policy.used_up != said
    assert policy.used_up.endswith("before step 1,400")
    assert acts(guard(rollback=True, budget=False).policy(), range(100, 120), **BACK) == [back] * 20


def test_without_roll_backs_left_a_halt_that_was_asked_for_stops_the_job_and_nothing_else_does():
    news = {"findings": (finding("UN401", first=60, last=10**6),), "restorable": (20,)}
    back = ["roll-back+skip"] * 3
    assert acts(guard(rollback=True, halt=True).policy(), range(5), **news) == [*back, "halt", None]
    policy = guard(rollback=True).policy()
    assert acts(policy, range(5), **news) == [*back, None, None]
    assert "UN401: why" in policy.used_up


def test_a_skip_for_want_of_a_checkpoint_is_no_roll_back():
    policy = guard(rollback=True).policy()
    assert acts(policy, range(9), **BACK | {"restorable": ()}) == ["skip"] * 9
    assert policy.used_up == ""


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_where_it_is_asked_for_a_lasting_fault_stops_after_exactly_the_budget(budget):
    policy = Policy([Row("a", always, "skip")], budget=budget, halts_unhelped=True)
    assert acts(policy, range(100, 110)) == ["skip"] * budget + ["halt"] + [None] * (9 - budget)


def test_the_halt_says_that_the_budget_is_used_up_and_why_it_was_used():
    policy = guard(halt=["UN602"]).policy()
    *_, last = [policy.decide(replace(CALM, step=step, loss_W=(1.0, 1.0, NAN, 1.0))) for step in range(4)]
    assert last.actions == ("halt",)
    assert last.reason == "3 actions in the last 1,000 steps did not help: rank 2's loss is not finite"
    assert last.ranks == (2,)


def test_roll_backs_that_did_not_help_stop_the_job_where_that_is_asked_for():
    news = {"findings": (finding("UN401", first=60, last=10**6),), "restorable": (20,)}
    policy = guard(rollback=True, halt=["UN602"]).policy()
    assert acts(policy, range(5), **news) == ["roll-back+skip"] * 3 + ["halt", None]
    assert policy.used_up == ""


def test_the_budget_is_for_a_stretch_of_steps():
    policy = Policy([Row("a", always, "skip")], budget=3, per=1000, halts_unhelped=True)
    assert acts(policy, (0, 400, 800, 1000, 1400, 1500)) == ["skip"] * 5 + ["halt"]


def test_what_turned_out_to_be_needed_counts_where_the_job_is_to_stop_and_not_for_roll_backs():
    for asked, last in ((guard(rollback=True), "roll-back+skip"), (guard(rollback=True, halt=["UN602"]), "halt")):
        policy = asked.policy()
        for step in range(3):
            policy.charge(step)
        assert acts(policy, (50,), **BACK) == [last]


def test_without_a_budget_there_is_no_end():
    assert acts(guard(budget=False, halt=["UN602"]).policy(), range(50), norm=NAN) == ["skip"] * 50


def test_rows_that_are_not_counted_leave_the_budget_alone():
    policy = Policy([Row("a", always, "clip", counted=False)], budget=1, halts_unhelped=True)
    assert acts(policy, range(100, 150)) == ["clip"] * 50


def test_a_dry_run_decides_the_same_and_nothing_after_its_halt():
    wet = Policy([Row("a", always, "skip")], halts_unhelped=True)
    dry = Policy([Row("a", always, "skip")], dry_run=True, halts_unhelped=True)
    for step in range(8):
        one, other = (policy.decide(replace(CALM, step=step)) for policy in (wet, dry))
        assert other == (None if one is None else replace(one, dry=True, time=other.time))


def test_decisions_are_numbered_and_travel_as_text():
    policy = guard(budget=False).policy()
    decisions = [policy.decide(replace(CALM, step=step, norm=INF)) for step in (5, 9)]
    assert [decision.number for decision in decisions] == [1, 2]
    odd = replace(decisions[1], evidence={"norm": INF, "x": 0.1 + 0.2}, argument=1 / 3, ranks=(3, 1))
    assert Decision.from_json(odd.to_json()) == odd
    assert json.loads(odd.to_json())["step"] == 9


def test_a_function_of_the_users_own_is_a_callback_known_by_its_row():
    called = []
    policy = guard(rows=[Row("mine", always, called.append)]).policy()
    decision = Decision.from_json(policy.decide(CALM).to_json())
    assert decision.actions == ("callback",)
    policy.row(decision.row).do(decision)
    assert called == [decision]


def test_a_row_that_fails_rests_and_says_why():
    policy = Policy([Row("bad", lambda now: now.nothing, "halt"), Row("good", always, "skip")])
    assert policy.decide(CALM).row == "good"
    assert list(policy.broken) == ["bad"]
    assert policy.broken["bad"].startswith("AttributeError")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Row("", always, "skip"), "should have a name"),
        (lambda: Row("a", "norm > 5", "skip"), "should be a function"),
        (lambda: Row("a", always, "explode"), "Found `explode`"),
        (lambda: Row("a", always, ()), "Found none"),
        (lambda: Policy([Row("a", always, "skip"), Row("a", always, "skip")]), "Found `a` twice"),
        (lambda: guard(rows=[Row("extreme", always, "skip")]).policy(), "Found `extreme` twice"),
    ],
)
def test_rows_that_cannot_be_are_refused(make, words):
    with pytest.raises(UserError, match=words):
        make()


@pytest.mark.parametrize(
    ("changes", "reason", "ranks"),
    [
        ({"loss_W": (1.0, INF, 1.0, 1.0)}, "rank 1's loss is not finite", (1,)),
        ({"finite_W": (True, True, False, None)}, "rank 2's gradients are not finite", (2,)),
        ({"finite_W": (False,) * 4}, "every worker's gradients are not finite", (0, 1, 2, 3)),
        ({"finite_W": (False, True, False, True)}, "the ranks 0 and 2's gradients are not finite", (0, 2)),
        ({"norm": NAN}, "the averaged gradient is not finite", ()),
        ({"loss_W": (1.0, 1.0, 1.0, NAN), "ranks": (4, 5, 6, 7)}, "rank 7's loss is not finite", (7,)),
    ],
)
def test_what_is_not_finite_is_skipped_and_named(changes, reason, ranks):
    decision = decided(guard(), **changes)
    assert (decision.actions, decision.reason, decision.ranks) == (("skip",), reason, ranks)


def test_what_a_loss_scaler_skips_is_its_own_business():
    changes = {"finite_W": (True, False, True, True), "norm": INF, "norm_ratio": None, "loss_W": (NAN,) * 4}
    asked = guard(rollback=True, reset_momentum=1)
    assert decided(asked, scaled=True, spikes=5, restorable=(10,), **changes) is None


@pytest.mark.parametrize(("ratio", "does"), [(10.0, False), (10.01, True)])
def test_an_extreme_norm_is_skipped(ratio, does):
    assert (decided(guard(), norm=50.0, norm_ratio=ratio) is not None) is does


@pytest.mark.parametrize(
    ("asked", "ratio", "does"),
    [
        (guard(), 39.0, None),
        (guard(), 41.0, "skip"),
        (guard(norm_spike=True), 39.0, None),
        (guard(norm_spike=10), 10.0, None),
        (guard(norm_spike=10), 10.1, "skip"),
        (guard(rollback=True), 399.0, "skip"),
        (guard(rollback=True), 401.0, "roll-back+skip"),
        (guard(rollback=100), 101.0, "roll-back+skip"),
    ],
)
def test_a_norm_that_rises_with_the_losses_of_most_workers_is_judged_mildly_unless_a_number_was_asked_for(
    asked, ratio, does
):
    assert acts(asked.policy(), (100,), norm_ratio=ratio, risen=True, restorable=(20,)) == [does]


@pytest.mark.parametrize(
    ("loss", "norm", "does"), [(30.0, 150.0, "skip"), (30.0, 25.0, "skip"), (3.0, 25.0, None), (3.0, 150.0, "skip")]
)
def test_an_extreme_gradient_with_losses_that_rise_everywhere_is_skipped_at_once(loss, norm, does):
    """As a batch gone wrong on all workers makes it; losses and norms that rise a little look like harder data."""
    watch, asked = Watch(4), guard()
    for step in range(40):
        now = heard(watch, step, [1.0, 1.1, 0.9, 1.0], 2.0)
        watch.learn(now, asked.spike(now))
    bad = heard(watch, 40, [loss] * 4, norm)
    assert bad.risen
    decision = asked.policy().decide(bad)
    assert (None if decision is None else "+".join(decision.actions)) == does
    assert guard(loss_spike=False).policy().decide(heard(watch, 40, [loss] * 4, 25.0)) is None


def test_the_losses_of_most_workers_are_those_of_more_than_half():
    changes = {"norm_ratio": 20.0, "risen": True}
    assert decided(guard(), loss_score_W=(99.0, 99.0, 9.0, 9.0), **changes) is None
    assert decided(guard(), loss_score_W=(99.0, 99.0, 99.0, 9.0), **changes) is not None


@pytest.mark.parametrize(
    ("loss_W", "score_W", "ranks"),
    [
        ((1.0, 1.0, 90.0, 1.0), (0.0, 0.0, 80.0, 0.0), (2,)),
        ((1.0, 1.0, 90.0, 1.0), (0.0, 0.0, 40.0, 0.0), None),
        ((60.0, 70.0, 90.0, 50.0), (60.0, 70.0, 80.0, 50.0), None),
        ((-5.0, -5.0, 30.0, -5.0), (0.0, 0.0, 80.0, 0.0), (2,)),
        ((90.0,), (80.0,), None),
        ((None, None, 90.0, None), (None, None, 80.0, None), None),
    ],
)
def test_an_extreme_loss_stands_out_from_its_past_and_from_the_other_workers(loss_W, score_W, ranks):
    decision = decided(guard(), loss_W=loss_W, loss_score_W=score_W)
    assert (None if decision is None else decision.ranks) == ranks


def test_limits_can_be_switched_off():
    changes = {"norm_ratio": 1e6, "loss_W": (1.0, 1.0, 1.0, 1e6), "loss_score_W": (0.0, 0.0, 0.0, 1e6)}
    assert decided(guard(norm_spike=False, loss_spike=False), **changes) is None
    assert decided(guard(skip=False), norm=NAN, **changes) is None


def test_rolling_back_goes_to_the_newest_checkpoint():
    decision = decided(guard(rollback=True), norm=1e5, norm_ratio=5000.0, restorable=(20, 40))
    assert (decision.actions, decision.argument, decision.row) == (("roll-back", "skip"), 40.0, "explosion")
    assert decided(guard(rollback=True), norm_ratio=50.0, restorable=(20,)).actions == ("skip",)
    assert decided(guard(rollback=20), norm_ratio=50.0, restorable=(20,)).actions == ("roll-back", "skip")


def test_a_finding_leads_back_to_before_it_began():
    asked, news = guard(rollback=True), (finding("UN401", first=60, last=99),)
    assert decided(asked, findings=news, restorable=(20, 40, 60, 80)).argument == 40.0
    for harmless in (finding("UN401", "warning"), finding("UN401", state="resolved"), finding("UN105")):
        assert decided(asked, findings=(harmless,), restorable=(20,)) is None


def test_without_an_older_checkpoint_the_step_is_skipped_and_that_is_said():
    for restorable in ((), (60, 80)):
        decision = decided(guard(rollback=True), findings=(finding("UN404", first=60),), restorable=restorable)
        assert (decision.actions, decision.argument) == (("skip",), None)
        assert "no healthy checkpoint" in decision.reason


def test_spikes_that_persist_reset_the_momentum_and_then_roll_back():
    asked = guard(reset_momentum=True, rollback=True)
    changes = {"norm": NAN, "norm_ratio": None, "restorable": (20,)}
    found = [decided(asked, spikes=spikes, **changes).actions for spikes in range(4)]
    assert found == [("skip",), ("skip",), ("reset-momentum", "skip"), ("roll-back", "skip")]
    assert decided(guard(rollback=True), spikes=2, **changes).actions == ("roll-back", "skip")
    assert decided(asked, spikes=9) is None


@pytest.mark.parametrize("code", ["UN202", "UN301", "UN303", "UN304"])
def test_replicas_that_differ_are_made_equal(code):
    decision = decided(guard(resync=True), findings=(finding(code),))
    assert (decision.actions, decision.ranks) == (("resync",), (2,))
    assert decided(guard(), findings=(finding(code),)) is None


def test_replicas_are_compared_every_so_many_steps_without_spending_the_budget():
    policy = guard(resync=500, budget=0, halt=["UN602"]).policy()
    assert acts(policy, (1,), since_check=499) == [None]
    assert acts(policy, (2, 3, 4), since_check=500) == ["resync"] * 3


def test_identical_randomness_is_reseeded():
    assert decided(guard(reseed=True), findings=(finding("UN201"),)).actions == ("reseed",)


def test_halting_is_asked_for_by_code_or_for_all_that_is_critical():
    warning, grave = finding("UN410", "warning"), finding("UN502", "critical")
    assert decided(guard(halt=["UN410"]), findings=(grave, warning)).reason == "UN410: why"
    assert decided(guard(halt=True), findings=(warning, grave)).reason == "UN502: why"
    assert decided(guard(halt=True), findings=(warning,)) is None
    assert decided(guard(halt=["UN410"]), findings=(grave,)) is None


def test_clipping_gives_the_factor():
    decision = decided(guard(clip=2.0), norm=8.0)
    assert (decision.actions, decision.argument) == (("clip",), 0.25)
    assert decided(guard(clip=True), norm=8.0, recent_norm=3.0).argument == 0.75
    assert decided(guard(clip=True), norm=8.0, recent_norm=None) is None
    assert decided(guard(clip=2.0), norm=2.0) is None
    assert decided(guard(clip=2.0, resync=500), norm=8.0, since_check=500).actions == ("resync", "clip")
    assert decided(guard(clip=2.0), norm=NAN).actions == ("skip",)


def heard(watch, step, losses, norm, finite=True):
    return watch.situation(step, losses, [finite] * len(losses), norm)


def test_the_watch_keeps_spikes_out_of_the_past():
    watch, asked = Watch(2, ranks=(4, 5)), guard()
    for step in range(40):
        now = heard(watch, step, [1.0, 1.0], 2.0)
        watch.learn(now, asked.spike(now))
    hot = heard(watch, 40, [1.0, 200.0], 900.0)
    assert (hot.norm_ratio, hot.spikes, hot.risen) == (450.0, 0, False)
    watch.learn(hot, asked.spike(hot))
    after = heard(watch, 41, [1.0, 1.0], 900.0)
    assert (after.norm_ratio, after.spikes, after.recent_norm) == (450.0, 1, 2.0)
    assert asked.spike(heard(watch, 42, [1.0, 200.0], 2.0)).ranks == (5,)


def test_losses_that_rise_on_all_workers_are_no_accident_of_one_batch():
    watch, asked = Watch(4), guard()
    for step in range(40):
        now = heard(watch, step, [1.0] * 4, 2.0)
        watch.learn(now, asked.spike(now))
    assert not heard(watch, 40, [1.0, 1.0, 9.0, 9.0], 2.0).risen
    now = heard(watch, 40, [3.0] * 4, 60.0)
    assert now.risen
    assert asked.policy().decide(now) is None
    for step in range(41, 200):
        now = heard(watch, step, [3.0] * 4, 60.0)
        assert asked.policy().decide(now) is None
        watch.learn(now, asked.spike(now))
    assert not now.risen


@pytest.mark.parametrize("asked", [guard(), guard(rollback=True)])
def test_a_loss_at_the_same_step_tells_whose_batch_made_the_norm_extreme(asked):
    losses = {"loss_W": (1.0, 1.0, 900.0, 1.0), "loss_score_W": (0.0, 0.0, 900.0, 0.0)}
    assert decided(asked, norm=5e3, norm_ratio=5e3).ranks == ()
    found = decided(asked, norm=5e3, norm_ratio=5e3, **losses)
    assert found.ranks == (2,)
    assert "norm" in found.reason
    assert "rank 2's loss is 900" in found.reason


def test_a_row_without_a_cool_down_acts_on_every_bad_pass_of_a_step():
    """The number of a step stays when another model's training goes through this one."""
    policy = guard().policy()
    bad = replace(CALM, loss_W=(1.0, 1.0, math.nan, 1.0))
    assert [policy.decide(bad).actions for _ in range(2)] == [("skip",)] * 2
