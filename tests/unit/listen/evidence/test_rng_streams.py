"""Random streams: looked at without touching them."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from unisono.listen.evidence.rng_streams import consumed, digest, snapshot

CPU = torch.device("cpu")
DRAWS = {
    "torch": lambda: torch.rand(1),
    "python": random.random,
    "numpy": np.random.rand,
}


def test_looking_draws_nothing():
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(1)
    expected = [draw() for draw in DRAWS.values()]
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(1)
    assert consumed(snapshot(CPU), snapshot(CPU)) == {}
    assert [draw() for draw in DRAWS.values()] == expected


@pytest.mark.parametrize("name", DRAWS)
def test_a_single_draw_shows_in_its_own_stream(name):
    before = snapshot(CPU)
    DRAWS[name]()
    assert list(consumed(before, snapshot(CPU))) == [name]


@pytest.mark.parametrize("draws", [1, 300, 623, 624, 625])
def test_every_part_of_the_state_counts(draws):
    """A Mersenne Twister keeps a position beside 624 words, which change only when they are used up."""
    torch.manual_seed(0)
    before = snapshot(CPU)
    for _ in range(draws):
        torch.randint(2, (1,))
    assert list(consumed(before, snapshot(CPU))) == ["torch"]


@pytest.mark.parametrize("seed", [torch.manual_seed, random.seed, np.random.seed])
def test_equal_seeds_have_equal_states_and_others_have_not(seed):
    def state(number):
        seed(number)
        return {name: digest(state) for name, state in snapshot(CPU).items()}

    assert state(3) == state(3)
    assert state(3) != state(4)


def test_numpys_state_counts_to_the_last_word():
    name, words, *rest = snapshot(CPU)["numpy"]
    changed = words.copy()
    changed[len(words) // 2] ^= 1
    with np.printoptions(threshold=10):
        assert digest((name, words, *rest)) != digest((name, changed, *rest))


def test_dropout_draws_in_training_only():
    dropout = nn.Dropout(0.5)
    before = snapshot(CPU)
    dropout(torch.ones(4))
    assert list(consumed(before, snapshot(CPU))) == ["torch"]
    before = snapshot(CPU)
    dropout.eval()(torch.ones(4))
    assert consumed(before, snapshot(CPU)) == {}


def test_a_snapshot_does_not_move_with_the_stream():
    before = snapshot(CPU)
    digests = {name: digest(state) for name, state in before.items()}
    for draw in DRAWS.values():
        draw()
    assert {name: digest(state) for name, state in before.items()} == digests


def test_a_stream_that_appears_in_between_is_left_out():
    before = snapshot(CPU)
    numpy = before.pop("numpy")
    assert "numpy" not in consumed(before, snapshot(CPU) | {"numpy": numpy})
