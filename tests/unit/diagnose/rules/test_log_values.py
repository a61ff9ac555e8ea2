"""Logarithms of what the workers measured, and when there are none."""

import math

import pytest

from unisono.diagnose.rules.shared.log_values import logs

TINY = 1e-30


@pytest.mark.parametrize("value_W", [(1.0, 2.5, 1e300), [3, 8], (5e-324, 1.0)])
def test_logarithms_of_positive_numbers(value_W):
    assert logs(value_W) == [math.log(value) for value in value_W]


@pytest.mark.parametrize("odd", [None, 0.0, -1.0, math.nan, math.inf, -math.inf])
def test_there_are_none_where_one_value_is_no_positive_number(odd):
    assert logs((1.0, odd, 2.0)) is None


def test_a_worker_alone_has_nobody_to_be_compared_with():
    assert logs((1.0,)) is None
    assert logs(()) is None


@pytest.mark.parametrize("low", [0.0, -1.0, 1e-40])
def test_small_values_are_raised_to_the_floor(low):
    assert logs((1.0, low), TINY) == [0.0, math.log(TINY)]


@pytest.mark.parametrize("odd", [None, math.nan, math.inf, -math.inf])
def test_a_floor_does_not_make_numbers_of_what_is_none(odd):
    assert logs((1.0, odd, 0.0), TINY) is None
