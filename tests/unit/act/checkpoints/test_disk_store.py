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
def shelves():
    made = []

    def make(folder, rank=0, keep=2, quiet=2, world=1, attempt=1, **options):
        first = options.pop("replica_writer", True)
        shelf = DiskStore(folder, rank, first, "replica-0.pt", keep, quiet, world, attempt, **options)
        made.append(shelf)
        return shelf

    yield make
    for shelf in made:
        shelf.close()


def written(shelf):
    assert shelf.wait(10)
    return shelf


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_worker_goes_back_to_the_newest_healthy_one(worker, shelves, tmp_path):
    one, shelf, kept = worker(), shelves(tmp_path / "c"), {}
    for step in range(1, 8):
        one.train(1)
        shelf.keep(capture(one.subject, step))
        kept[step] = one.everything()
        written(shelf).quiet(step)
        if shelf.held():
            shelf.agreed(shelf.held()[-1])
    assert shelf.held() == (4, 5)
    put_back(one.subject, shelf.fetch(5))
    assert one.everything() == kept[5]
    written(shelf)
    # There was no room for the sixth: two were waiting.
    assert (find_healthy(tmp_path / "c", 0), files.steps_in(tmp_path / "c")) == ([4, 5], [4, 5, 7])
    shelf.trouble(5)
    written(shelf)
    assert (shelf.held(), find_healthy(tmp_path / "c", 0), files.steps_in(tmp_path / "c")) == ((4,), [4], [4])


def test_nothing_is_healthy_on_the_disk_before_all_workers_agree(worker, shelves, tmp_path):
    one, shelf = worker(), shelves(tmp_path / "c", quiet=0)
    shelf.keep(capture(one.subject, 1))
    written(shelf).quiet(1)
    assert (shelf.held(), find_healthy(tmp_path / "c", 0)) == ((1,), [])
    shelf.agreed(1)
    written(shelf)
    assert find_healthy(tmp_path / "c", 0) == [1]
    with pytest.raises(CheckpointError, match="there is 1"):
        shelf.agreed(2)


def test_two_workers_of_one_host_share_a_replica(worker, shelves, tmp_path):
    one, folder = worker(), tmp_path / "c"
    first = shelves(folder, 0, world=2, quiet=0)
    second = shelves(folder, 1, world=2, quiet=0, replica_writer=False)
    for shelf in (first, second):
        one.sampler.place += 1
        shelf.keep(capture(one.subject, 1))
        written(shelf).quiet(1)
    for shelf in (first, second):
        shelf.agreed(1)
        written(shelf)
    parts = [f"step-000000001/{name}" for name in ("healthy.json", "rank-0.json", "rank-0.pt", "rank-1.json")]
    parts += [f"step-000000001/{name}" for name in ("rank-1.pt", "replica-0.json", "replica-0.pt")]
    assert names(folder) == parts
    assert [shelf.fetch(1).own["states"][1]["place"] for shelf in (first, second)] == [1, 2]


def test_the_newest_wins_when_writing_is_slower_than_training(worker, shelves, tmp_path):
    one, shelf = worker(), shelves(tmp_path / "c", keep=9, quiet=0)
    gate = threading.Event()
    shelf._writer.soon(gate.wait)
    for step in (1, 2, 3):
        shelf.keep(capture(one.subject, step))
    gate.set()
    written(shelf).quiet(3)
    assert (shelf.held(), shelf.dropped, files.steps_in(tmp_path / "c")) == ((3,), 2, [3])


def test_trouble_also_reaches_what_is_not_yet_written(worker, shelves, tmp_path):
    one, shelf = worker(), shelves(tmp_path / "c", quiet=0)
    gate = threading.Event()
    shelf._writer.soon(gate.wait)
    shelf.keep(capture(one.subject, 1))
    shelf.trouble(1)
    gate.set()
    written(shelf).quiet(9)
    assert (shelf.held(), files.steps_in(tmp_path / "c")) == ((), [])


def test_keeping_does_not_wait_for_the_disk(worker, shelves, tmp_path):
    one, shelf = worker(), shelves(tmp_path / "c")
    gate = threading.Event()
    shelf._writer.soon(lambda: gate.wait(20))
    snapshot = capture(one.subject, 1)
    began = time.perf_counter()
    shelf.keep(snapshot)
    shelf.quiet(5)
    assert shelf.held() == ()
    assert time.perf_counter() - began < 10, "the writer is still waiting: nobody should wait for it"
    gate.set()


def test_a_full_disk_is_told_once_and_training_goes_on(worker, shelves, tmp_path):
    one, told = worker(), []
    shelf = shelves(tmp_path / "c", quiet=0, complain=told.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step in (1, 2, 3):
        # The third finds room again.
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096 if step < 3 else soft, hard))
        try:
            shelf.keep(capture(one.subject, step))
            written(shelf)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    shelf.quiet(3)
    assert (shelf.held(), shelf.failures, len(told)) == ((3,), 2, 1)
    assert "File too large" in told[0]
    assert files.steps_in(tmp_path / "c") == [3]


def test_a_file_that_comes_back_changed_from_the_disk_is_not_held(worker, shelves, tmp_path, monkeypatch):
    one, told = worker(), []
    shelf = shelves(tmp_path / "c", quiet=0, complain=told.append)
    write = files.write

    def write_badly(path, *rest):
        write(path, *rest)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(files, "write", write_badly)
    shelf.keep(capture(one.subject, 1))
    written(shelf).quiet(9)
    assert shelf.held() == ()
    assert "its content is not what was written" in told[0]


def test_weights_that_are_not_finite_are_not_written(worker, shelves, tmp_path):
    one, told = worker(), []
    shelf = shelves(tmp_path / "c", quiet=0, complain=told.append)
    with torch.no_grad():
        next(one.model.parameters())[0, 0] = float("inf")
    shelf.keep(capture(one.subject, 1))
    written(shelf).quiet(9)
    assert (shelf.held(), files.steps_in(tmp_path / "c")) == ((), [])
    assert "parameter `0.weight` of step 1 is not" in told[0]


def test_a_folder_that_is_a_link_is_not_written_to(worker, shelves, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "elsewhere")
    shelf = shelves(tmp_path / "c", quiet=0)
    shelf.keep(capture(worker().subject, 1))
    written(shelf)
    assert (shelf.failures, names(tmp_path / "elsewhere")) == (1, [])


def test_files_of_others_are_left_alone(worker, shelves, tmp_path):
    one, folder = worker(), tmp_path / "c"
    shelf = shelves(folder, keep=1, quiet=0)
    (folder / "step-000000000").mkdir(parents=True)
    (folder / "step-000000000" / "notes.txt").write_text("mine")
    (folder / "mine").write_text("mine")
    for step in (1, 2):
        shelf.keep(capture(one.subject, step))
        written(shelf).quiet(step)
        shelf.agreed(step)
    written(shelf)
    assert {name.rpartition("/")[0] for name in names(folder)} == {"", "step-000000000", "step-000000002"}


def test_the_next_attempt_goes_on_from_what_it_has_loaded(worker, shelves, tmp_path):
    one, folder = worker(), tmp_path / "c"
    first = shelves(folder, quiet=0)
    first.keep(capture(one.subject, 1))
    written(first).quiet(1)
    first.agreed(1)
    first.close()
    second = shelves(folder, quiet=0, attempt=2, keep=1)
    assert second.held() == ()
    second.adopt(1)
    assert (second.held(), second.fetch(1).step) == ((1,), 1)
    second.keep(capture(one.subject, 2))
    written(second).quiet(2)
    second.agreed(2)
    written(second)
    assert (second.held(), files.steps_in(folder)) == ((2,), [2])


def test_an_earlier_attempts_checkpoint_is_kept_until_there_are_enough_new_ones(worker, shelves, tmp_path):
    one, folder = worker(), tmp_path / "c"
    for attempt, step in ((1, 1), (2, 2), (3, 3)):
        shelf = shelves(folder, quiet=0, keep=2, attempt=attempt)
        shelf.keep(capture(one.subject, step))
        written(shelf).quiet(step)
        shelf.agreed(step)
        shelf.close()
        assert find_healthy(folder, 0) == [1, 2, 3][max(0, step - 2) : step]


def test_closing_waits_only_so_long(worker, tmp_path):
    shelf = DiskStore(tmp_path / "c", 0, True, "replica-0.pt", 2, 0, 1, 1)
    gate = threading.Event()
    shelf._writer.soon(gate.wait)
    began = time.perf_counter()
    shelf.close(patience=0.2)
    assert time.perf_counter() - began < 2.0
    assert shelf._writer.stopped
    gate.set()


def test_a_large_file_is_given_up_when_the_run_ends(shelves, tmp_path):
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


def test_a_forked_child_leaves_the_shelf_alone(shelves, tmp_path):
    shelf = shelves(tmp_path / "c")
    child = os.fork()
    if child == 0:
        shelf.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_replica_needs_a_plain_name(tmp_path):
    with pytest.raises(ValueError, match=r"replica-<name>\.pt"):
        DiskStore(tmp_path, 0, True, "../replica-0.pt", 2, 0, 1, 1)
