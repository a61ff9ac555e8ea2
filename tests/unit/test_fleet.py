"""The helpers of tests that need no cluster keep their word."""

import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from fleet import Clock, Fleet, InjectedError


def summed(value):
    tensor = torch.tensor([float(value)])
    dist.all_reduce(tensor)
    return float(tensor)


def test_ranks_meet_in_collectives_of_their_own():
    def work(rank):
        rows = [torch.empty(1) for _ in range(3)]
        dist.all_gather(rows, torch.tensor([float(rank)]), group=fleet.group)
        return dist.get_rank(), dist.get_world_size(), [int(row) for row in rows], summed(rank)

    before = c10d._world
    fleet = Fleet(3)
    assert fleet.run(work) == [(rank, 3, [0, 1, 2], 3.0) for rank in range(3)]
    assert fleet.run(work) == [(rank, 3, [0, 1, 2], 3.0) for rank in range(3)]
    assert c10d._world is before
    assert not dist.is_initialized()


def test_a_rank_that_fails_does_not_hold_up_the_others_and_its_error_is_the_tests():
    done = []

    def work(rank):
        for step in range(4):
            fleet.begins(step)
            summed(step)
            done.append((rank, step))

    fleet = Fleet(3).fail_at(1, step=2)
    began = time.monotonic()
    with pytest.raises(InjectedError, match="rank 1 fails at step 2"):
        fleet.run(work)
    assert time.monotonic() - began < 10
    assert sorted(done) == [(rank, step) for rank in range(3) for step in range(2)]


def test_a_rank_that_does_not_come_back_fails_the_test():
    def work(rank):
        if rank == 0:
            summed(0)

    with pytest.raises(RuntimeError, match="imed out"):
        Fleet(2, timeout=0.1, limit=5).run(work)


def test_a_late_rank_is_waited_for():
    def work(rank):
        fleet.begins(0)
        return summed(rank)

    fleet = Fleet(2).late(1, step=0, seconds=0.1)
    began = time.monotonic()
    assert fleet.run(work) == [1.0, 1.0]
    assert time.monotonic() - began >= 0.1


def test_a_clock_that_is_set(monkeypatch):
    module = type("module", (), {"time": time})
    clock = Clock(now=5.0).install(monkeypatch, module)
    clock.advance(3)
    module.time.sleep(10)
    assert module.time.monotonic() == 18.0
    assert abs(module.time.time() - time.time()) < 1
