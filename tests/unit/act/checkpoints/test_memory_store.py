"""Checkpoints in memory, and those of the script itself."""

import pytest
import torch

from unisono.act.checkpoints import CheckpointError, MemoryStore, Snapshot, UserStore, capture, put_back


def test_a_worker_goes_back_to_the_newest_healthy_one(worker):
    one, shelf = worker(), MemoryStore(keep=2, quiet=2)
    kept = {}
    for step in range(1, 8):
        one.train(1)
        shelf.keep(capture(one.subject, step))
        kept[step] = one.everything()
        shelf.quiet(step)
        if shelf.held():
            shelf.agreed(shelf.held()[-1])
    assert shelf.held() == (4, 5)
    put_back(one.subject, shelf.fetch(5))
    assert one.everything() == kept[5]
    shelf.trouble(5)
    assert shelf.held() == (4,)


def test_weights_that_are_not_finite_never_become_healthy(worker):
    one, shelf = worker(), MemoryStore(keep=2, quiet=1)
    with torch.no_grad():
        next(one.model.parameters())[0, 0] = float("nan")
    shelf.keep(capture(one.subject, 1))
    shelf.quiet(9)
    assert shelf.held() == ()


def test_only_healthy_ones_are_handed_out():
    shelf = MemoryStore(keep=2, quiet=5)
    shelf.keep(Snapshot(1))
    with pytest.raises(CheckpointError, match="Found no such one of step 1; there is none"):
        shelf.fetch(1)


def test_memory_is_bounded():
    shelf = MemoryStore(keep=3, quiet=1000)
    for step in range(100):
        shelf.keep(Snapshot(step))
        shelf.quiet(step)
    assert len(shelf._snapshots) == 3
    shelf.close()
    assert len(shelf._snapshots) == 0


def test_the_script_saves_and_loads_its_own():
    calls = []
    shelf = UserStore(lambda step: calls.append(("save", step)), lambda step: calls.append(("load", step)), 2, 5)
    assert not shelf.captures
    shelf.keep(Snapshot(10))
    shelf.keep(Snapshot(20))
    shelf.quiet(15)
    assert shelf.fetch(10) == Snapshot(10)
    shelf.trouble(16)
    shelf.quiet(99)
    assert (calls, shelf.held()) == ([("save", 10), ("save", 20), ("load", 10)], (10,))


def test_a_script_that_cannot_save_has_no_checkpoint():
    def fail(step):
        raise OSError("disk full")

    shelf = UserStore(fail, fail, 2, 0)
    with pytest.raises(CheckpointError, match=r"`save\(3\)` to raise OSError: disk full"):
        shelf.keep(Snapshot(3))
    shelf.quiet(9)
    assert shelf.held() == ()
