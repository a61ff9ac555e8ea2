"""Arithmetic of the cost of a step, with a trainee that only says how long its steps take."""

import pytest
import torch.distributed as dist

from unisono.common.schedule import every
from unisono.lab.bench.step_cost import DEFAULT_SCHEDULE, EVERY_STEP, PLAIN, PLAIN_DDP, by_turns, route_cost, step_cost
from unisono.lab.bench.training import TimedBlock


class Told:
    """A plain step takes 100 ms, a heard one 10 ms more, and one that is not heard 1 ms more."""

    def __init__(self, reading_seconds=0.01):
        self.asked, self.reading_seconds = [], reading_seconds

    def block(self, options, steps):
        self.asked.append(options)
        if options is None:
            return TimedBlock([100.0] * steps, [False] * steps, 1_000)
        interval = options["schedule"].segments[0].interval
        heard = [step % interval == 0 for step in range(steps)]
        reading = self.reading_seconds if any(heard) else None
        return TimedBlock([110.0 if one else 101.0 for one in heard], heard, 1_500, reading)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(dist, "broadcast_object_list", lambda found: None)


def test_what_listening_adds():
    found = step_cost(Told(), turns=3, steps=5, after_block=lambda: None)
    assert found["milliseconds"][PLAIN] == 100
    assert found["added_milliseconds"][EVERY_STEP] == {"median": 10, "least": 10, "most": 10}
    assert found["added_percent"][EVERY_STEP]["median"] == pytest.approx(10)
    assert found["reading_milliseconds"] == 10
    assert found["extra_bytes"] == {PLAIN: 0, EVERY_STEP: 500, DEFAULT_SCHEDULE: 500}
    assert found["heard"] == {PLAIN: 0, EVERY_STEP: 15, DEFAULT_SCHEDULE: 3}


def test_the_default_schedule_hears_as_often_as_half_a_percent_allows():
    found = step_cost(Told(), turns=1, steps=2, after_block=lambda: None)
    # 10 ms are half a percent of 18.2 steps of 110 ms, as long as they were when it was measured.
    assert found["interval"] == 19
    assert found["milliseconds"][DEFAULT_SCHEDULE] == pytest.approx((110 + 18 * 101) / 19)


def test_readings_that_cost_next_to_nothing_are_all_heard():
    found = step_cost(Told(reading_seconds=1e-4), turns=1, steps=5, after_block=lambda: None)
    assert found["interval"] == 1
    assert found["milliseconds"][DEFAULT_SCHEDULE] == 110


def test_what_was_not_heard_has_no_cost():
    with pytest.raises(RuntimeError, match="Found none that was"):
        step_cost(Told(reading_seconds=None), turns=1, steps=5, after_block=lambda: None)


def test_every_second_turn_goes_backwards():
    told, after = Told(), []
    variants = {"a": None, "b": {"schedule": every(1)}}
    blocks = by_turns(told, variants, 3, 2, lambda: after.append(1))
    assert [options is None for options in told.asked] == [True, False, False, True, True, False]
    assert {name: len(found) for name, found in blocks.items()} == {"a": 3, "b": 3}
    assert len(after) == 6


def test_routes_are_compared_with_the_plain_block_of_their_turn():
    routes = {PLAIN_DDP: None, "listening": {"schedule": every(1)}}
    found = route_cost(Told(), routes, turns=2, steps=3, after_block=lambda: None)
    assert found["ratio"] == {PLAIN_DDP: 1, "listening": pytest.approx(1.1)}
    assert found["milliseconds"] == {PLAIN_DDP: 100, "listening": 110}
