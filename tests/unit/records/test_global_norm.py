"""The norm of the averaged gradient, also where only the script's own clipping knows it."""

import math

import pytest

from unisono.records import StepRecord
from unisono.records.global_norm import GlobalNorm


def step(number, own=None, clipped=None, **fields):
    return StepRecord(1, number, 0.0, grad_norm=own, clip_norm=clipped, **fields)


def seen(*records):
    norm = GlobalNorm()
    return [norm.of(record) for record in records]


def test_between_readings_it_is_what_clipping_returned():
    assert seen(step(0, 2.0, 2.0), step(1, None, 3.0), step(2, 4.0, 4.01), step(3)) == [2.0, 3.0, 4.0, None]


def test_before_the_first_reading_clipping_is_believed():
    assert seen(step(0, None, 3.0)) == [3.0]


@pytest.mark.parametrize("clipped", [1.0, 131072.0])
def test_what_clips_something_else_is_left_out_until_it_fits_again(clipped):
    """A part of the model, or the loss scale still in it."""
    assert seen(step(0, 2.0, clipped), step(1, None, 3.0), step(2, 2.0, 2.0), step(3, None, 3.0)) == [
        2.0,
        None,
        2.0,
        3.0,
    ]


def test_a_norm_that_is_not_finite_decides_nothing_about_the_next():
    assert seen(step(0, math.inf, math.nan), step(1, None, 3.0)) == [math.inf, 3.0]


def test_steps_that_were_skipped_or_steered_have_no_such_norm():
    assert seen(step(0, None, 3.0, skipped=True), step(1, None, 3.0, kept_workers=2)) == [None, None]
