"""Spikes against the recent past of a series."""

import math
import random

import pytest

from unisono.act.guard.step_state import LEAST, NEW_LEVEL, WINDOW, UsualValues


def filled(values):
    recent = UsualValues()
    for value in values:
        recent.accept(value)
    return recent


def test_nothing_is_told_before_twenty_values():
    recent = filled([1.0] * (LEAST - 1))
    assert (recent.median, recent.ratio(5.0), recent.score(5.0)) == (None, None, None)
    recent.accept(1.0)
    assert (recent.median, recent.ratio(5.0), recent.score(5.0)) == (1.0, 5.0, pytest.approx(80))


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_unknown_or_not_finite_leaves_no_trace(value):
    recent = filled([1.0] * 30)
    recent.accept(value)
    for _ in range(2 * NEW_LEVEL):
        recent.refuse(value)
    assert (len(recent), recent.median) == (30, 1.0)
    assert (recent.ratio(value), recent.score(value)) == (None, None)


def test_only_the_window_counts():
    recent = filled([100.0] * WINDOW + [1.0] * WINDOW)
    assert (len(recent), recent.median) == (WINDOW, 1.0)


def test_refused_values_do_not_become_usual():
    recent = filled([1.0] * 30)
    for _ in range(NEW_LEVEL - 1):
        recent.refuse(500.0)
    assert recent.ratio(500.0) == 500


def test_a_lasting_new_level_is_believed_in_the_end():
    recent = filled([1.0] * 30)
    for _ in range(NEW_LEVEL):
        recent.refuse(500.0)
    assert (recent.median, recent.ratio(500.0)) == (500.0, 1.0)


def test_refusals_with_ordinary_values_between_them_never_make_a_level():
    recent = filled([1.0] * 30)
    for _ in range(3 * NEW_LEVEL):
        recent.refuse(500.0)
        recent.accept(1.0)
    assert recent.median == 1.0


def test_a_series_that_scatters_by_powers_of_ten_has_a_wide_range():
    draw = random.Random(0)
    calm = filled([math.exp(draw.gauss(0, 0.1)) for _ in range(WINDOW)])
    wild = filled([math.exp(draw.gauss(0, 1.0)) for _ in range(WINDOW)])
    assert calm.ratio(30.0) > 15
    assert wild.ratio(30.0) < 4
    assert wild.ratio(3000.0) > 50


def test_values_may_be_negative():
    draw = random.Random(0)
    recent = filled([-5 + draw.gauss(0, 0.1) for _ in range(WINDOW)])
    assert abs(recent.score(-5.0)) < 1
    assert recent.score(20.0) == pytest.approx(25 / 0.25, rel=0.05)
    assert recent.ratio(1.0) is None


def test_zeros_are_no_division():
    recent = filled([0.0] * WINDOW)
    assert recent.ratio(1.0) is None
    assert (recent.score(0.0), recent.score(1.0), recent.score(-1.0)) == (0.0, math.inf, -math.inf)


def test_a_loss_near_zero_is_measured_by_where_it_began():
    learnt = filled([2.0] * LEAST + [1e-4] * WINDOW)
    resumed = filled([1e-4] * WINDOW)
    assert learnt.score(0.5) == pytest.approx(5, rel=0.01)
    assert resumed.score(0.5) > 1000


def test_a_value_as_large_as_the_largest_recent_one_is_no_spike():
    recent = filled([0.01] * 62 + [1.0])
    assert recent.score(1.0) == pytest.approx(5)


def test_what_grows_a_little_at_a_time_is_no_spike():
    """As the gradients of a model that leaves a plateau."""
    recent = filled([5e-4] * 60)
    for step in range(1, 12):
        value = 5e-4 * 3.0**step
        assert recent.ratio(value) == pytest.approx(3)
        recent.accept(value)
    assert recent.ratio(5e-4 * 3.0**11 * 20) == pytest.approx(20)
