"""One loader's passes: what is told of each, and whether its order is that of the pass before."""

import random

import pytest

from unisono.exchange.epoch_coverage import LONG_ORDER, EpochCoverage, SampleDraws
from unisono.sketch.fingerprint import hash_of


def shuffled(seed, count=64):
    return random.Random(seed).sample(range(1000), count)


def run(*orders, batch=8, facts=None):
    """The message of the last pass."""
    passes = EpochCoverage(0)
    for order in orders:
        passes.begin(facts or {}, dataset=0)
        for begin in range(0, len(order), batch):
            passes.add(order[begin : begin + batch])
    return passes.message(7, True, SampleDraws())


def test_facts_are_told_with_the_number_of_the_pass():
    passes = EpochCoverage(3)
    assert passes.begin({"dataset": "5"}, dataset=0) == {"dataset": "5", "number": "3", "pass": "0"}
    assert passes.begin({}, dataset=0) == {"number": "3", "pass": "1"}


def test_a_pass_without_indices_is_not_told():
    passes = EpochCoverage(0)
    assert passes.message(0, True, SampleDraws()) is None
    passes.begin({"dataset": "5"}, dataset=0)
    passes.add([])
    assert passes.message(0, True, SampleDraws()) is None


def test_a_message_speaks_of_the_newest_pass_alone():
    message = run(range(10), range(100, 130), facts={"dataset": "200"})
    assert (message["draws"]["drawn"], message["epoch"], message["dataset"]) == (30, 1, 200)


def test_keys_tell_passes_and_moments_apart():
    passes = EpochCoverage(2)
    keys = []
    for _ in range(2):
        passes.begin({}, dataset=0)
        for step, complete in ((5, False), (6, False), (6, True)):
            passes.add([1])
            keys.append(passes.message(step, complete, SampleDraws())["key"])
    assert len(set(keys)) == 6


def test_nothing_new_is_not_told_again_but_for_the_end_of_a_pass():
    passes = EpochCoverage(0)
    passes.begin({}, dataset=0)
    passes.add([1])
    assert passes.message(5, False, SampleDraws()) is not None
    assert passes.message(6, False, SampleDraws()) is None
    assert passes.message(7, True, SampleDraws()) is not None


@pytest.mark.parametrize(
    ("orders", "repeated"),
    [
        ((shuffled(1),), None),
        ((shuffled(1), shuffled(1)), True),
        ((shuffled(1), shuffled(2)), False),
        ((shuffled(1), shuffled(2), shuffled(1)), False),
        ((shuffled(1), shuffled(2), shuffled(2)), True),
        ((list(range(64)), list(range(64))), False),
        ((shuffled(1, 600), shuffled(1, 600)), True),
        ((shuffled(1, LONG_ORDER - 1), shuffled(1, LONG_ORDER - 1)), None),
        ((shuffled(1, 8), shuffled(1, 8)), None),
        ((shuffled(1), shuffled(1)[:40]), True),
        ((shuffled(1)[:10], shuffled(1)), None),
    ],
)
def test_whether_the_order_is_that_of_the_pass_before(orders, repeated):
    assert run(*orders)["repeated"] is repeated


def test_a_pass_of_a_single_batch_has_no_order():
    assert run(shuffled(1), shuffled(1), batch=64)["repeated"] is None


def test_what_is_remembered_is_bounded():
    passes = EpochCoverage(0)
    passes.begin({}, dataset=0)
    for begin in range(0, 100_000, 100):
        passes.add(list(range(begin, begin + 100)))
    assert len(passes._order) < 1_000


def test_a_hash_depends_on_every_index_and_their_order_and_fits_64_bits():
    assert hash_of([1, 2]) == hash_of([1, 2])
    assert len({hash_of(indices) for indices in ([], [1, 2], [2, 1], [12], [1], [1, 2, 3])}) == 6
    assert all(-(2**63) <= hash_of([number]) < 2**63 for number in range(100))
