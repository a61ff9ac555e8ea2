"""Blocks of real training in a group of one."""

import gc
import threading

import pytest
import torch
import torch.distributed as dist

from unisono.common.schedule import every
from unisono.lab.bench.job import trainee
from unisono.lab.bench.models import Shape
from unisono.lab.bench.training import WARM_UP, processor_seconds

SHAPE = Shape(vocabulary=64, width=64, layers=1, hidden=64, heads=1)
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """A group of this process only, on one thread: a tiny model would wait for the others most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()
    torch.set_num_threads(threads)


def learner(home, **settings):
    return trainee(SHAPE, (2, 8), CPU, home, settles=0.0, **settings)


@pytest.mark.parametrize("bucket_view", [False, True])
def test_a_block_tells_which_of_its_steps_were_heard(tmp_path, bucket_view):
    one = learner(tmp_path, gradient_as_bucket_view=bucket_view)
    block = one.block({"schedule": every(3)}, 6)
    assert len(block.milliseconds) == 6
    assert block.heard == [(WARM_UP + step) % 3 == 0 for step in range(6)]
    assert block.reading_seconds > 0


def test_a_block_without_unisono_leaves_no_run_and_no_thread(tmp_path):
    before = set(threading.enumerate())
    block = learner(tmp_path).block(None, 3)
    assert (block.heard, block.reading_seconds) == ([False] * 3, None)
    assert list(tmp_path.iterdir()) == []
    assert not {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("unisono")}


def test_processor_time_is_that_of_threads_of_unisono():
    def counted(name):
        ready, over = threading.Event(), threading.Event()

        def compute():
            sum(range(3_000_000))
            ready.set()
            over.wait()

        before, thread = processor_seconds(), threading.Thread(target=compute, name=name)
        thread.start()
        ready.wait()
        seconds = processor_seconds() - before
        over.set()
        thread.join()
        return seconds

    assert counted("unisono") > 0.01
    assert counted("other") < counted("unisono") / 2, "other tests' monitors may still use a little"


def test_blocks_train_one_model_on(tmp_path):
    apart, together = learner(tmp_path / "a"), learner(tmp_path / "b")
    for _ in range(2):
        apart.block(None, 3)
    together.block(None, 3)
    together.block({"schedule": every(1)}, 3)
    weights = [torch.cat([one.detach().flatten() for one in each.model.parameters()]) for each in (apart, together)]
    assert torch.equal(*weights)


def test_a_block_warms_up_until_it_has_settled(tmp_path):
    one = learner(tmp_path)
    one.settles = 0.1
    counted = []
    one.make_loss = lambda model, make_loss=one.make_loss: counted.append(1) or make_loss(model)
    one.block(None, 2)
    assert len(counted) >= WARM_UP + 2
    assert (len(counted) - 2) % WARM_UP == 0
