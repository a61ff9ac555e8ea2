import math

import pytest

from unisono.act.steering.steering import SteeredMean


def test_parts_count_by_their_size():
    tally = SteeredMean(2)
    assert tally.empty
    tally.add(300, [0.5, 0.5], [0.2, 0.4])
    tally.add(100, [1.0, 0.0], [0.2, 1.2])
    assert not tally.empty
    assert tally.result().weight_W == pytest.approx((0.625, 0.375))
    assert tally.result().distance_W == pytest.approx((0.2, 0.6))


def test_a_part_in_which_nobody_counts_has_no_weights():
    tally = SteeredMean(2)
    tally.add(10, [math.nan, math.nan], [math.nan, math.nan])
    assert tally.result().weight_W == (0.0, 0.0)
    assert all(map(math.isnan, tally.result().distance_W))
