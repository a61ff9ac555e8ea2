"""When the ranks are asked to listen more closely."""

from types import SimpleNamespace

import pytest

from unisono.common.schedule import DEFAULT, every
from unisono.listen.listening_plan import ListeningPlan
from unisono.listen.messages import AllRanksStep, RankStep
from unisono.measure.adapt_schedule import ScheduleAdapter
from unisono.records import StepRecord


def announced(**fields):
    """What the ranks are told after a step at which the last of three was not finite."""
    said = []
    plan = ListeningPlan(every(1))
    message_store = SimpleNamespace(announce=said.append)
    exchange = SimpleNamespace(plan=plan, message_store=message_store, newest=10, take=plan.apply)
    signals = tuple(RankStep(10, 0.0, finite=worker < 2, seconds=0.1) for worker in range(3))
    record = StepRecord(attempt=0, step=10, time=0.0, finite_W=(True, True, False), **fields)
    ScheduleAdapter(lambda *_, **__: None).after(AllRanksStep(10, signals), record, exchange)
    return said


@pytest.mark.parametrize("fields", [{}, {"kept_workers": 3}, {"kept_workers": 2, "weight_W": (0.5, 0.0, 0.5)}])
def test_what_is_not_finite_and_counts_is_looked_at_closely(fields):
    assert any(one.end is not None for one in announced(**fields))


@pytest.mark.parametrize(
    "fields", [{"skipped": True}, {"kept_workers": 2, "weight_W": (0.5, 0.5, 0.0)}, {"kept_workers": 2}]
)
def test_what_was_left_out_or_skipped_is_not(fields):
    assert not any(one.end is not None for one in announced(**fields))


def costs_announced(step_seconds, reading_share_at, steps=1500, schedule=DEFAULT, first_step=0):
    """The announcements of a job whose readings cost `reading_share_at(step)` step times; the first step is slow."""
    said = []
    plan = ListeningPlan(schedule, first_step)
    exchange = SimpleNamespace(
        plan=plan, message_store=SimpleNamespace(announce=said.append), newest=first_step, take=plan.apply
    )
    adapter = ScheduleAdapter(lambda *_, **__: None)
    for step in range(first_step, first_step + steps):
        exchange.newest, heard = step, plan.hears(step)
        seconds = 3.0 if step == first_step else step_seconds
        cost = reading_share_at(step) * step_seconds if heard else 0.0
        signal = RankStep(step, 0.0, seconds=seconds, cost=cost, heard=heard)
        record = StepRecord(attempt=0, step=step, time=0.0, heard=heard)
        adapter.after(AllRanksStep(step, (signal, signal)), record, exchange)
    return said, plan


@pytest.mark.parametrize("first_step", [0, 7000])
def test_the_cost_is_known_before_the_closely_heard_steps_end(first_step):
    said, plan = costs_announced(1.0, lambda step: 0.295, first_step=first_step)
    [only] = said
    assert only.start < first_step + 100
    later = range(first_step + 100, first_step + 600)
    heard = [step - first_step for step in later if plan.hears(step)]
    assert heard == [*range(100, 500, 30), 500, 560]


def test_fast_steps_are_heard_now_and_then_until_the_cost_is_agreed():
    said, plan = costs_announced(0.01, lambda step: 1.0, steps=600)
    [only] = said
    assert 200 < only.start < 250
    assert [step for step in range(100, 200) if plan.hears(step)] == list(range(100, 200, 10))


def test_a_cost_that_was_measured_too_early_is_soon_told_again():
    said, _ = costs_announced(1.0, lambda step: 2.0 if step < 25 else 0.1)
    assert said[0].cost > 1.5
    assert said[1].start < 150
    assert said[-1].cost < said[0].cost / 3


def test_a_fixed_schedule_needs_no_cost():
    assert costs_announced(1.0, lambda step: 0.3, schedule=every(2))[0] == []
