"""Counting samples: exact where nothing repeats, close elsewhere, in bounded memory."""

import json
import random

import pytest

from unisono.exchange.epoch_coverage import MOST_KEPT, SampleDraws, share_of, together


def counter(samples):
    draws = SampleDraws()
    draws.add(samples)
    return draws.as_message()


@pytest.mark.parametrize("count", [0, 1, 1024, 1025, 50_000])
def test_without_repeats_the_count_is_exact(count):
    message = counter(range(count))
    assert message["drawn"] == count
    assert message["distinct"] == count
    assert len(message["kept"]) <= MOST_KEPT


def test_few_repeats_are_counted_exactly():
    assert counter([1, 2, 2, 3, 3, 3])["distinct"] == 3


def test_many_repeats_are_counted_closely():
    chance = random.Random(0)
    samples = [chance.randrange(20_000) for _ in range(40_000)]
    assert counter(samples)["distinct"] == pytest.approx(len(set(samples)), rel=0.08)


def test_the_order_and_the_batches_do_not_matter():
    samples = list(range(5_000)) * 2
    shuffled = random.Random(1).sample(samples, len(samples))
    one, other = SampleDraws(), SampleDraws()
    one.add(samples)
    for begin in range(0, len(shuffled), 7):
        other.add(shuffled[begin : begin + 7])
    assert one.as_message()["level"] == other.as_message()["level"]
    assert set(one.as_message()["kept"]) == set(other.as_message()["kept"])


def test_parts_that_do_not_overlap_add_up_exactly():
    parts = [counter(range(rank, 30_000, 4)) for rank in range(4)]
    assert together(parts) == 30_000


def test_a_single_shared_sample_is_noticed_in_small_counters():
    assert together([counter(range(100)), counter(range(99, 200))]) == pytest.approx(200, abs=0.01)


@pytest.mark.parametrize("size", [900, 10_000, 100_000])
def test_overlap_is_counted_closely(size):
    chance = random.Random(2)
    parts = [chance.sample(range(size), size // 4) for _ in range(4)]
    expected = len(set().union(*parts))
    assert together([counter(part) for part in parts]) == pytest.approx(expected, rel=0.05)


def test_counters_of_different_fineness_can_be_laid_side_by_side():
    small, large = counter(range(100)), counter(range(100, 40_000))
    assert small["level"] != large["level"]
    assert together([small, large]) == 40_000


def test_nothing_drawn():
    assert together([]) == 0
    assert together([counter([]), counter([])]) == 0
    assert share_of(counter([]), [counter(range(5))]) == 0
    assert share_of(counter(range(5)), []) == 0


def test_the_share_of_samples_that_others_have():
    assert share_of(counter(range(10)), [counter(range(5)), counter(range(4, 8))]) == 0.8
    assert share_of(counter(range(3_000)), [counter(range(30_000))]) == 1.0
    assert share_of(counter(range(3_000)), [counter(range(3_000, 30_000))]) == 0.0


def test_negative_and_large_indices_are_samples_too():
    assert counter([*range(-3_000, 0), 2**62])["distinct"] == 3_001


def test_a_message_is_plain_json():
    message = counter(range(5_000))
    assert json.loads(json.dumps(message)) == message
