"""Long series by step, in little memory."""

import math

from unisono.records import StepRecord
from unisono.show.analysis.curves import MOST_STRETCHES, Curves


def curves(*attempts):
    made = Curves(("loss_mean", "cos_mean"))
    for number, steps in enumerate(attempts, start=1):
        for step, loss in steps:
            made.see(StepRecord(number, step, 0.0, loss_mean=loss, cos_mean=0.5 if step % 2 else None))
    return made


def rising(count, start=0):
    return [(step, float(step)) for step in range(start, start + count)]


def test_a_short_run_is_kept_step_by_step():
    made = curves(rising(10))
    assert made.steps == range(10)
    assert made.over(range(2, 6)) == {"loss_mean": [2.0, 3.0, 4.0, 5.0], "cos_mean": [0.5, 0.5]}


def test_a_long_run_has_few_means_and_they_are_right():
    made = curves(rising(50_000))
    values = made.over(made.steps)["loss_mean"]
    assert MOST_STRETCHES / 2 <= len(values) <= MOST_STRETCHES
    assert values == sorted(values)
    assert values[0] == (256 - 1) / 2


def test_the_beginning_of_a_long_run_stays_as_fine_as_a_short_one():
    made = curves(rising(50_000))
    assert made.over(range(40)) == curves(rising(40)).over(range(40))
    many = made.over(range(2000))["loss_mean"]
    assert len(many) >= MOST_STRETCHES / 2
    assert max(many) < 2000 + 2000 / 100


def test_memory_does_not_grow_with_the_run():
    levels = curves(rising(60_000))._levels
    assert len(levels) <= 10
    assert all(len(level.sums) <= MOST_STRETCHES + 1 for level in levels)


def test_an_attempt_takes_the_place_of_what_it_does_again():
    made = curves(rising(5000), [(step, -1.0) for step in range(100, 150)])
    assert made.steps == range(150)
    assert made.over(range(98, 103))["loss_mean"] == [98.0, 99.0, -1.0, -1.0, -1.0]
    again = curves(rising(5000), [(step, -1.0) for step in range(3)])
    assert again.over(again.steps)["loss_mean"] == [-1.0, -1.0, -1.0]


def test_an_attempt_that_goes_on_keeps_what_was():
    both, one = curves(rising(3000), rising(3000, start=3000)), curves(rising(6000))
    assert both.over(both.steps) == one.over(one.steps)


def test_what_is_unknown_or_not_finite_is_left_out():
    made = curves([(0, None), (1, math.nan), (2, math.inf), (3, 1.0)])
    assert made.over(range(4))["loss_mean"] == [1.0]


def test_a_run_without_steps():
    made = curves()
    assert not made.steps
    assert made.over(made.steps) == {"loss_mean": [], "cos_mean": []}


def test_a_run_that_begins_late():
    made = curves(rising(1000, start=1_000_000))
    assert made.steps == range(1_000_000, 1_001_000)
    assert made.over(range(1_000_000, 1_000_002))["loss_mean"] == [1_000_000.0, 1_000_001.0]
