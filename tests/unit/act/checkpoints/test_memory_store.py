"""Checkpoints in memory, and those of the script itself."""

import pytest
import torch

from unisono.act.checkpoints import CheckpointError, MemoryStore, Snapshot, UserStore, capture, put_back


def test_a_worker_goes_back_to_the_newest_healthy_one(worker):
    one, store = worker(), MemoryStore(keep=2, quiet=2)
    kept = {}
    for step in range(1, 8):
        one.train(1)
        store.keep(capture(one.subject, step))
        kept[step] = one.everything()
        store.quiet(step)
        if store.held():
            store.agreed(store.held()[-1])
    assert store.held() == (4, 5)
    put_back(one.subject, store.fetch(5))
    assert one.everything() == kept[5]
    store.trouble(5)
    assert store.held() == (4,)


def test_weights_that_are_not_finite_never_become_healthy(worker):
    one, store = worker(), MemoryStore(keep=2, quiet=1)
    with torch.no_grad():
        next(one.model.parameters())[0, 0] = float("nan")
    store.keep(capture(one.subject, 1))
    store.quiet(9)
    assert store.held() == ()


def test_only_healthy_ones_are_handed_out():
    store = MemoryStore(keep=2, quiet=5)
    store.keep(Snapshot(1))
    with pytest.raises(CheckpointError, match="Found no such one of step 1; there is none"):
        store.fetch(1)


def test_memory_is_bounded():
    store = MemoryStore(keep=3, quiet=1000)
    for step in range(100):
        store.keep(Snapshot(step))
        store.quiet(step)
    assert len(store._snapshots) == 3
    store.close()
    assert len(store._snapshots) == 0


def test_the_script_saves_and_loads_its_own():
    calls = []
    store = UserStore(lambda step: calls.append(("save", step)), lambda step: calls.append(("load", step)), 2, 5)
    assert not store.captures
    store.keep(Snapshot(10))
    store.keep(Snapshot(20))
    store.quiet(15)
    assert store.fetch(10) == Snapshot(10)
    store.trouble(16)
    store.quiet(99)
    assert (calls, store.held()) == ([("save", 10), ("save", 20), ("load", 10)], (10,))


def test_a_script_that_cannot_save_has_no_checkpoint():
    def fail(step):
        raise OSError("disk full")

    store = UserStore(fail, fail, 2, 0)
    with pytest.raises(CheckpointError, match=r"`save\(3\)` to raise OSError: disk full"):
        store.keep(Snapshot(3))
    store.quiet(9)
    assert store.held() == ()
