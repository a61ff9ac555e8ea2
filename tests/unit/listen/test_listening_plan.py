"""Which steps are heard, and that all ranks agree on it."""

import pytest

from unisono.common.schedule import DEFAULT, every, within_budget
from unisono.listen.listening_plan import FEWEST_READINGS, SLOW_AT_FIRST, Announcement, Cost, ListeningPlan


def heard(plan, steps):
    return [step for step in steps if plan.hears(step)]


def test_every_step_up_to_100_then_every_tenth_and_from_500_on_every_twentieth_until_the_cost_is_known():
    plan = ListeningPlan(DEFAULT)
    assert heard(plan, range(600)) == [*range(100), *range(100, 500, 10), *range(500, 600, 20)]


def test_one_announced_cost_serves_both_budgets():
    plan = ListeningPlan(DEFAULT)
    plan.apply(Announcement(start=90, cost=0.5))
    assert heard(plan, range(90, 700)) == [*range(90, 100), *range(100, 500, 50), *range(500, 700, 100)]


def test_at_least_every_500th_step_is_heard():
    plan = ListeningPlan(DEFAULT)
    plan.apply(Announcement(start=90, cost=1000.0))
    assert heard(plan, range(100, 2000)) == [100, 500, 1000, 1500]


def test_steps_count_from_where_listening_began():
    plan = ListeningPlan(every(1).until(3).then(every(10)), first_step=1000)
    assert heard(plan, range(1000, 1030)) == [1000, 1001, 1002, 1003, 1013, 1023]


def test_an_announced_cost_holds_from_its_step_on():
    plan = ListeningPlan(DEFAULT)
    plan.apply(Announcement(start=525, cost=0.2))
    assert heard(plan, range(499, 640)) == [500, 520, 525, 565, 605]


def test_an_announced_cost_leaves_fixed_segments_alone():
    plan = ListeningPlan(every(1).until(500).then(every(100)))
    plan.apply(Announcement(start=520, cost=0.1))
    assert heard(plan, range(500, 800)) == [500, 600, 700]
    assert not plan.needs_cost


def test_a_burst_hears_every_step():
    plan = ListeningPlan(every(100))
    plan.apply(Announcement(start=110, end=174))
    assert heard(plan, range(100, 300)) == [100, *range(110, 174), 200]
    assert plan.in_burst(110)
    assert not plan.in_burst(174)


def test_many_bursts_take_bounded_memory():
    plan = ListeningPlan(every(100))
    for start in range(0, 100_000, 100):
        plan.apply(Announcement(start=start, end=start + 64))
    assert len(plan._bursts) < 10
    assert plan.hears(99_901)


@pytest.mark.parametrize(("interval", "length"), [(1, 32), (5, 160)])
def test_a_window_holds_32_heard_steps(interval, length):
    plan = ListeningPlan(every(interval))
    steps = heard(plan, range(4 * length))
    windows = [plan.window(step) for step in steps]
    assert sorted(set(windows)) == [0, length, 2 * length, 3 * length]
    assert all(windows.count(window) == 32 for window in set(windows))


def test_windows_never_mix_intervals():
    plan = ListeningPlan(every(1).until(100).then(every(10)))
    assert plan.window(99) == 96
    assert plan.window(100) == 100


@pytest.mark.parametrize(("cost", "interval"), [(0.0, 1), (0.02, 4), (0.021, 5), (9.0, 500)])
def test_the_interval_keeps_listening_within_its_budget(cost, interval):
    assert within_budget(0.005).segments[-1].interval_at(cost) == interval


def test_the_first_steps_tell_nothing_about_what_a_reading_costs():
    cost = Cost()
    for _ in range(SLOW_AT_FIRST):
        cost.observe(step_seconds=5.0, reading_seconds=3.0, heard=True)
    for _ in range(FEWEST_READINGS - 1):
        cost.observe(step_seconds=1.0, reading_seconds=0.02, heard=True)
    assert cost.value is None
    cost.observe(step_seconds=1.0, reading_seconds=9.0, heard=False)
    assert cost.value is None
    cost.observe(step_seconds=1.0, reading_seconds=0.02, heard=True)
    assert cost.value == pytest.approx(0.02)


@pytest.mark.parametrize("bad", [lambda: every(0), lambda: within_budget(0), lambda: within_budget(2)])
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(ValueError, match="Found"):
        bad()


def test_a_schedule_is_built_in_order():
    with pytest.raises(ValueError, match="until"):
        every(1).then(every(2))
    with pytest.raises(ValueError, match="after"):
        every(1).until(10).then(every(2)).until(5)
