"""Windows and scores, against the plain definitions."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.history import Blocks, Peers, Window, gaps_to_others, median, medians_of_others, scatter

numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=40)


@given(numbers)
def test_a_window_holds_the_last_numbers(values):
    window = Window(8)
    for value in values:
        window.add(value)
    last = values[-8:]
    assert len(window) == len(last)
    assert window.full == (len(values) >= 8)
    assert window.median == pytest.approx(statistics.median(last))
    assert window.largest == max(last)


def test_deviation_ignores_a_quarter():
    rng = random.Random(0)
    window = Window(400)
    for number in range(400):
        window.add(1e6 if number % 10 == 0 else rng.gauss(5, 2))
    assert window.deviation == pytest.approx(2, rel=0.3)


def test_scatter_is_the_standard_deviation_of_normal_numbers():
    rng = random.Random(0)
    assert scatter([rng.gauss(5, 2) for _ in range(2000)]) == pytest.approx(2, rel=0.1)


@given(numbers)
def test_medians_of_others(values):
    expected = [statistics.median(values[:i] + values[i + 1 :]) for i in range(len(values))]
    assert medians_of_others(values) == pytest.approx(expected)
    assert gaps_to_others(values) == pytest.approx([a - b for a, b in zip(values, expected, strict=True)])


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9))
def test_median(values):
    assert median(values) == pytest.approx(statistics.median(values))


def test_blocks():
    blocks = Blocks(size=3, count=2)
    assert [blocks.add(number) for number in (1, 2, 9, 4, 4, 4)] == [False, False, True, False, False, True]
    assert list(blocks.medians) == [2, 4]
    assert (blocks.full, blocks.rising, blocks.falling, blocks.growth) == (True, True, False, 2)
    for number in (1, 1, 1):
        blocks.add(number)
    assert list(blocks.medians) == [4, 1]
    assert (blocks.rising, blocks.falling) == (False, True)


def heard(peers, readings, offset_W, seed=0):
    rng = random.Random(seed)
    for _ in range(readings):
        peers.add([rng.gauss(offset, 1) for offset in offset_W])
    return peers


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_peers_that_are_alike(workers, seed):
    peers = Peers(workers, least=0.1)
    for block in range(20):
        heard(peers, 100, [0] * workers, seed=100 * seed + block)
        assert peers.apart() == []


@pytest.mark.parametrize("workers", [3, 4, 8])
@pytest.mark.parametrize("offset", [2, -2, 1.5])
def test_the_outlier_among_peers(workers, offset):
    peers = heard(Peers(workers, least=0.1), 400, [0, offset] + [0] * (workers - 2))
    assert peers.outlier() == 1
    assert peers.level(1) == pytest.approx(offset, abs=0.8)


def test_three_extreme_readings_are_enough():
    peers = heard(Peers(3, least=0.1), 100, [0, 0, 0])
    heard(peers, 2, [0, 50, 0])
    assert peers.outlier() is None
    heard(peers, 1, [0, 50, 0])
    assert peers.outlier() == 1


def test_nobody_is_judged_before_enough_was_heard():
    assert heard(Peers(3, least=0.1), 10, [0, 50, 0]).outlier() is None


def test_two_on_the_same_side_are_no_single_outlier():
    peers = heard(Peers(6, least=0.1), 300, [0, 3, 3, 0, 0, 0])
    assert peers.apart() == [1, 2]
    assert peers.outlier() is None


def test_levels_of_their_own_are_no_outlier():
    peers = Peers(3, least=0.1)
    for _ in range(500):
        peers.add([0.0, 1.0, 9.0])
    assert peers.apart()
    assert peers.outlier() is None


def test_less_than_the_least_difference():
    peers = Peers(4, least=0.1)
    for _ in range(500):
        peers.add([0.0, 0.0, 0.0, 0.05])
    assert peers.apart() == []
    assert not peers.alarmed
