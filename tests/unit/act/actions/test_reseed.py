"""Streams begin anew, the same each time, and another one on every worker."""

import random

import numpy as np
import pytest
import torch

from unisono.act.actions.reseed import reseed


@pytest.fixture(autouse=True)
def _own_streams():
    """Leaves the streams of other tests as they were."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def drawn(seed, worker):
    reseed(seed, worker)
    return torch.rand(()).item(), random.random(), np.random.rand()


def test_the_same_seed_and_worker_give_the_same_streams():
    assert drawn(7, 3) == drawn(7, 3)


def test_the_numbers_are_the_same_in_every_process_and_version():
    reseed(7, 3)
    assert torch.initial_seed() == 7060265565682625417


def test_every_stream_of_every_worker_differs():
    numbers = [drawn(seed, worker) for seed in (0, 1, 7) for worker in range(8)]
    for stream in zip(*numbers, strict=True):
        assert len(set(stream)) == 24


def test_any_number_is_a_seed():
    for seed in (-1, 0, 2**64 + 5):
        assert drawn(seed, 0) != drawn(seed, 1)
