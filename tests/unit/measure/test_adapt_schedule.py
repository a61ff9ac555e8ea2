"""When the ranks are asked to listen more closely."""

from types import SimpleNamespace

import pytest

from unisono.common.schedule import every
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
