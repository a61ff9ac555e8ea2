"""Which part of the model is compared at which reading."""

import pytest

from unisono.common.schedule import DEFAULT, every
from unisono.listen.listening_plan import WHOLE_AUDITS, Announcement, ListeningPlan

PARTS = 50


def audits(plan, steps, parts=PARTS):
    return [plan.audit(step, parts) for step in steps if plan.hears(step)]


def test_the_first_readings_compare_everything():
    found = audits(ListeningPlan(every(1)), range(WHOLE_AUDITS + 2))
    assert found == [(0, 1)] * WHOLE_AUDITS + [(3, PARTS), (4, PARTS)]


@pytest.mark.parametrize("first_step", [0, 1000])
@pytest.mark.parametrize("interval", [1, 7])
def test_every_part_has_its_turn(first_step, interval):
    plan = ListeningPlan(every(interval), first_step)
    later = audits(plan, range(first_step + 3 * interval, first_step + (3 + PARTS) * interval))
    assert sorted(later) == [(part, PARTS) for part in range(PARTS)]


def test_a_model_of_one_parameter_is_always_whole():
    assert set(audits(ListeningPlan(every(1)), range(20), parts=1)) == {(0, 1)}


def test_a_new_interval_is_no_new_start():
    plan = ListeningPlan(DEFAULT)
    plan.apply(Announcement(start=520, cost=0.1))
    later = audits(plan, range(500, 520 + 20 * PARTS))
    assert (0, 1) not in later
    assert len(set(later)) == PARTS


def test_a_burst_begins_with_everything():
    plan = ListeningPlan(every(100))
    plan.apply(Announcement(start=510, end=574))
    found = audits(plan, range(510, 574))
    assert found[:WHOLE_AUDITS] == [(0, 1)] * WHOLE_AUDITS
    assert {part for part, parts in found if parts == PARTS} == set(range(PARTS))


def test_steps_after_a_burst_go_on_as_before():
    plan, undisturbed = ListeningPlan(every(100)), ListeningPlan(every(100))
    plan.apply(Announcement(start=510, end=574))
    assert audits(plan, range(600, 3000)) == audits(undisturbed, range(600, 3000))


def test_a_detail_is_asked_for_at_one_step():
    plan = ListeningPlan(every(1))
    plan.apply(Announcement(start=12, detail=True))
    assert [step for step in range(30) if plan.detail(step)] == [12]


def test_questions_change_nothing_else():
    plan = ListeningPlan(every(10))
    for question in (Announcement(start=12, detail=True), Announcement(start=13, audit_of=3, batch_of=4, keep=True)):
        plan.apply(question)
    assert [step for step in range(40) if plan.hears(step)] == [0, 10, 20, 30]
    assert not plan.detail(13)


def test_many_details_take_bounded_memory():
    plan = ListeningPlan(every(1))
    for start in range(10_000):
        plan.apply(Announcement(start=start, detail=True))
    assert len(plan._details) < 10
    assert plan.detail(9_999)
