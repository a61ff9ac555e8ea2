"""Checkpoints in a folder: written beside training, marked, thinned out, and no reason for training to fail."""

import os
import resource
import subprocess
import sys
import threading
import time

import pytest
import torch

from unisono.act.checkpoints import CheckpointError, DiskStore, capture, files, find_healthy, put_back


@pytest.fixture
def stores():
    made = []

    def make(folder, rank=0, keep=2, quiet=2, world=1, attempt=1, **options):
        first = options.pop("replica_writer", True)
        store = DiskStore(folder, rank, first, "replica-0.pt", keep, quiet, world, attempt, **options)
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def written(store):
    assert store.wait(10)
    return store


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_worker_goes_back_to_the_newest_healthy_one(worker, stores, tmp_path):
    one, store, kept = worker(), stores(tmp_path / "c"), {}
    for step in range(1, 8):
        one.train(1)
        store.keep(capture(one.subject, step))
        kept[step] = one.everything()
        written(store).quiet(step)
        if store.held():
            store.agreed(store.held()[-1])
    assert store.held() == (4, 5)
    put_back(one.subject, store.fetch(5))
    assert one.everything() == kept[5]
    written(store)
    # There was no room for the sixth: two were waiting.
    assert (find_healthy(tmp_path / "c", 0), files.steps_in(tmp_path / "c")) == ([4, 5], [4, 5, 7])
    store.trouble(5)
    written(store)
    assert (store.held(), find_healthy(tmp_path / "c", 0), files.steps_in(tmp_path / "c")) == ((4,), [4], [4])


def test_nothing_is_healthy_on_the_disk_before_all_workers_agree(worker, stores, tmp_path):
    one, store = worker(), stores(tmp_path / "c", quiet=0)
    store.keep(capture(one.subject, 1))
    written(store).quiet(1)
    assert (store.held(), find_healthy(tmp_path / "c", 0)) == ((1,), [])
    store.agreed(1)
    written(store)
    assert find_healthy(tmp_path / "c", 0) == [1]
    with pytest.raises(CheckpointError, match="there is 1"):
        store.agreed(2)


def test_two_workers_of_one_host_share_a_replica(worker, stores, tmp_path):
    one, folder = worker(), tmp_path / "c"
    first = stores(folder, 0, world=2, quiet=0)
    second = stores(folder, 1, world=2, quiet=0, replica_writer=False)
    for store in (first, second):
        one.sampler.place += 1
        store.keep(capture(one.subject, 1))
        written(store).quiet(1)
    for store in (first, second):
        store.agreed(1)
        written(store)
    parts = [f"step-000000001/{name}" for name in ("healthy.json", "rank-0.json", "rank-0.pt", "rank-1.json")]
    parts += [f"step-000000001/{name}" for name in ("rank-1.pt", "replica-0.json", "replica-0.pt")]
    assert names(folder) == parts
    assert [store.fetch(1).own["states"][1]["place"] for store in (first, second)] == [1, 2]


def test_the_newest_wins_when_writing_is_slower_than_training(worker, stores, tmp_path):
    one, store = worker(), stores(tmp_path / "c", keep=9, quiet=0)
    gate = threading.Event()
    store._writer.soon(gate.wait)
    for step in (1, 2, 3):
        store.keep(capture(one.subject, step))
    gate.set()
    written(store).quiet(3)
    assert (store.held(), store.dropped, files.steps_in(tmp_path / "c")) == ((3,), 2, [3])


def test_trouble_also_reaches_what_is_not_yet_written(worker, stores, tmp_path):
    one, store = worker(), stores(tmp_path / "c", quiet=0)
    gate = threading.Event()
    store._writer.soon(gate.wait)
    store.keep(capture(one.subject, 1))
    store.trouble(1)
    gate.set()
    written(store).quiet(9)
    assert (store.held(), files.steps_in(tmp_path / "c")) == ((), [])


def test_keeping_does_not_wait_for_the_disk(worker, stores, tmp_path):
    one, store = worker(), stores(tmp_path / "c")
    gate = threading.Event()
    store._writer.soon(lambda: gate.wait(20))
    snapshot = capture(one.subject, 1)
    began = time.perf_counter()
    store.keep(snapshot)
    store.quiet(5)
    assert store.held() == ()
    assert time.perf_counter() - began < 10, "the writer is still waiting: nobody should wait for it"
    gate.set()


def test_a_full_disk_is_told_once_and_training_goes_on(worker, stores, tmp_path):
    one, told = worker(), []
    store = stores(tmp_path / "c", quiet=0, complain=told.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step in (1, 2, 3):
        # The third finds room again.
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096 if step < 3 else soft, hard))
        try:
            store.keep(capture(one.subject, step))
            written(store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    store.quiet(3)
    assert (store.held(), store.failures, len(told)) == ((3,), 2, 1)
    assert "File too large" in told[0]
    assert files.steps_in(tmp_path / "c") == [3]


def test_a_file_that_comes_back_changed_from_the_disk_is_not_held(worker, stores, tmp_path, monkeypatch):
    one, told = worker(), []
    store = stores(tmp_path / "c", quiet=0, complain=told.append)
    write = files.write

    def write_badly(path, *rest):
        write(path, *rest)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(files, "write", write_badly)
    store.keep(capture(one.subject, 1))
    written(store).quiet(9)
    assert store.held() == ()
    assert "its content is not what was written" in told[0]


def test_weights_that_are_not_finite_are_not_written(worker, stores, tmp_path):
    one, told = worker(), []
    store = stores(tmp_path / "c", quiet=0, complain=told.append)
    with torch.no_grad():
        next(one.model.parameters())[0, 0] = float("inf")
    store.keep(capture(one.subject, 1))
    written(store).quiet(9)
    assert (store.held(), files.steps_in(tmp_path / "c")) == ((), [])
    assert "parameter `0.weight` of step 1 is not" in told[0]


def test_a_folder_that_is_a_link_is_not_written_to(worker, stores, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "elsewhere")
    store = stores(tmp_path / "c", quiet=0)
    store.keep(capture(worker().subject, 1))
    written(store)
    assert (store.failures, names(tmp_path / "elsewhere")) == (1, [])


def test_files_of_others_are_left_alone(worker, stores, tmp_path):
    one, folder = worker(), tmp_path / "c"
    store = stores(folder, keep=1, quiet=0)
    (folder / "step-000000000").mkdir(parents=True)
    (folder / "step-000000000" / "notes.txt").write_text("mine")
    (folder / "mine").write_text("mine")
    for step in (1, 2):
        store.keep(capture(one.subject, step))
        written(store).quiet(step)
        store.agreed(step)
    written(store)
    assert {name.rpartition("/")[0] for name in names(folder)} == {"", "step-000000000", "step-000000002"}


def test_the_next_attempt_goes_on_from_what_it_has_loaded(worker, stores, tmp_path):
    one, folder = worker(), tmp_path / "c"
    first = stores(folder, quiet=0)
    first.keep(capture(one.subject, 1))
    written(first).quiet(1)
    first.agreed(1)
    first.close()
    second = stores(folder, quiet=0, attempt=2, keep=1)
    assert second.held() == ()
    second.adopt(1)
    assert (second.held(), second.fetch(1).step) == ((1,), 1)
    second.keep(capture(one.subject, 2))
    written(second).quiet(2)
    second.agreed(2)
    written(second)
    assert (second.held(), files.steps_in(folder)) == ((2,), [2])


def test_an_earlier_attempts_checkpoint_is_kept_until_there_are_enough_new_ones(worker, stores, tmp_path):
    one, folder = worker(), tmp_path / "c"
    for attempt, step in ((1, 1), (2, 2), (3, 3)):
        store = stores(folder, quiet=0, keep=2, attempt=attempt)
        store.keep(capture(one.subject, step))
        written(store).quiet(step)
        store.agreed(step)
        store.close()
        assert find_healthy(folder, 0) == [1, 2, 3][max(0, step - 2) : step]


def test_closing_waits_only_so_long(worker, tmp_path):
    store = DiskStore(tmp_path / "c", 0, True, "replica-0.pt", 2, 0, 1, 1)
    gate = threading.Event()
    store._writer.soon(gate.wait)
    began = time.perf_counter()
    store.close(patience=0.2)
    assert time.perf_counter() - began < 2.0
    assert store._writer.stopped
    gate.set()


def test_a_large_file_is_given_up_when_the_run_ends(stores, tmp_path):
    with pytest.raises(CheckpointError, match="written to its end"):
        files.write(tmp_path / "rank-0.pt", {"x": torch.zeros(9)}, files.Origin(1, 1, 1), stopped=lambda: True)
    assert names(tmp_path) == []


STUCK = """
import sys, time, threading
from unisono.act.checkpoints import disk_store
disk_store.PATIENCE = 0.5
disk_store.DiskStore.close.__defaults__ = (0.5,)
store = disk_store.DiskStore(sys.argv[1], 0, True, "replica-0.pt", 2, 0, 1, 1)
store._writer.soon(lambda: time.sleep(600))
"""


def test_a_disk_that_does_not_answer_does_not_keep_the_process_alive(tmp_path):
    done = subprocess.run([sys.executable, "-c", STUCK, tmp_path], capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_forked_child_leaves_the_store_alone(stores, tmp_path):
    store = stores(tmp_path / "c")
    child = os.fork()
    if child == 0:
        store.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_replica_needs_a_plain_name(tmp_path):
    with pytest.raises(ValueError, match=r"replica-<name>\.pt"):
        DiskStore(tmp_path, 0, True, "../replica-0.pt", 2, 0, 1, 1)
