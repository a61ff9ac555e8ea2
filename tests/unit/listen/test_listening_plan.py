"""Which steps are heard, and that all ranks agree on it."""

import pytest

from unisono.common.schedule import DEFAULT, every, within_budget
from unisono.listen.listening_plan import Announcement, Budget, ListeningPlan


def heard(plan, steps):
    return [step for step in steps if plan.hears(step)]


def test_every_step_up_to_500_then_at_least_every_500th():
    plan = ListeningPlan(DEFAULT)
    assert heard(plan, range(500)) == list(range(500))
    assert heard(plan, range(500, 2000)) == [500, 1000, 1500]


def test_steps_count_from_where_listening_began():
    plan = ListeningPlan(every(1).until(3).then(every(10)), first_step=1000)
    assert heard(plan, range(1000, 1030)) == [1000, 1001, 1002, 1003, 1013, 1023]


def test_an_announced_interval_holds_from_its_step_on():
    plan = ListeningPlan(DEFAULT)
    plan.apply(Announcement(start=520, interval=20))
    assert heard(plan, range(499, 565)) == [499, 500, 520, 540, 560]


def test_an_announced_interval_leaves_fixed_segments_alone():
    plan = ListeningPlan(every(1).until(500).then(every(100)))
    plan.apply(Announcement(start=520, interval=20))
    assert heard(plan, range(500, 800)) == [500, 600, 700]


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


def test_the_interval_keeps_listening_within_its_budget():
    budget = Budget()
    assert budget.interval(0.005, longest=500) == 500
    budget.observe(step_seconds=1.0, cost_seconds=0.02, heard=True)
    assert budget.interval(0.005, longest=500) == 4
    budget.observe(step_seconds=1.0, cost_seconds=9.0, heard=False)
    assert budget.interval(0.005, longest=500) == 4
    assert budget.interval(0.5, longest=500) == 1


@pytest.mark.parametrize("bad", [lambda: every(0), lambda: within_budget(0), lambda: within_budget(2)])
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(ValueError, match="Found"):
        bad()


def test_a_schedule_is_built_in_order():
    with pytest.raises(ValueError, match="until"):
        every(1).then(every(2))
    with pytest.raises(ValueError, match="after"):
        every(1).until(10).then(every(2)).until(5)
