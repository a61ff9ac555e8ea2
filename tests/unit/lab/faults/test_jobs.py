"""The lab's jobs in one process: what is injected, when, and that it is counted; and how long they train."""

import math

import pytest
import torch
import torch.distributed as dist

from unisono.cli.commands.demo import SHOWN
from unisono.lab.faults.catalogue import FAULTS, STATISTICAL
from unisono.lab.faults.faulty_jobs import JOBS
from unisono.lab.faults.injections import INJECTIONS
from unisono.lab.faults.lengths import length_in_demo, length_of

STARTS_AT, STEPS = 3, 6
SIZES = {"samples": 24, "batch": 4, "epochs": 1, "starts_at": STARTS_AT}


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """A group of this process only."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(name, victim=0):
    """The job, and after each step the gradients' norm and the learning rate."""
    job = JOBS[name](victim=victim, **SIZES)
    model = job.network()
    seen = []
    job.before_update = spy(seen, job.before_update)
    for _ in job.train(model):
        pass
    return job, seen


def spy(seen, before_update):
    def looked_at(model, optimizer, step):
        before_update(model, optimizer, step)
        square = sum(float(parameter.grad.double().square().sum()) for parameter in model.parameters())
        seen.append((math.sqrt(square), optimizer.param_groups[0]["lr"]))

    return looked_at


def test_there_is_a_job_for_every_fault():
    assert set(JOBS) == {"honest", *FAULTS}
    assert set(INJECTIONS) == set(STATISTICAL)


def test_the_demo_shows_all_that_can_be_seen_in_it():
    harmless = {name for name, fault in FAULTS.items() if fault.harmless}
    assert "bit-10" in harmless
    assert set(FAULTS) - set(SHOWN) == {"oscillation", *harmless}


def test_gradients_are_changed_from_the_step_on():
    _, honest = trained("honest")
    job, seen = trained("gradient-x10")
    assert seen[:STARTS_AT] == honest[:STARTS_AT]
    assert seen[STARTS_AT][0] == pytest.approx(10 * honest[STARTS_AT][0])
    parameters = 6
    assert job.fired == (STEPS - STARTS_AT) * parameters


def test_one_bit_of_the_whole_gradient_is_flipped_once():
    job, seen = trained("bit-30")
    assert job.fired == 1
    assert seen[STARTS_AT][0] > 1e6 * seen[STARTS_AT - 1][0]


@pytest.mark.parametrize("name", ["gradient-x10", "wrong-labels-100", "toxic-batch", "throttled"])
def test_who_is_no_victim_trains_honestly(name):
    job, seen = trained(name, victim=1)
    assert (job.fired, seen) == (0, trained("honest")[1])


@pytest.mark.parametrize(("name", "fired"), [("wrong-labels-100", 3), ("scaled-inputs", 3), ("toxic-batch", 1)])
def test_batches_are_changed_from_the_step_on(name, fired):
    job, seen = trained(name)
    _, honest = trained("honest")
    assert job.fired == fired
    assert seen[:STARTS_AT] == honest[:STARTS_AT]
    assert seen[STARTS_AT] != honest[STARTS_AT]


def test_the_learning_rate_is_raised_once():
    job, seen = trained("learning-rate-too-high")
    high = 0.004 * job.injection.factor
    assert [rate for _, rate in seen] == pytest.approx([0.004] * STARTS_AT + [high] * (STEPS - STARTS_AT))
    assert high > 0.1
    assert job.fired == STEPS - STARTS_AT


def test_weights_start_far_too_small():
    job = JOBS["poor-initialisation"](**SIZES)
    for small, usual in zip(job.network().parameters(), JOBS["honest"]().network().parameters(), strict=True):
        assert torch.equal(small, 1e-4 * usual)
    assert job.fired == 1


def test_a_slow_worker_takes_longer(monkeypatch):
    slept = []
    monkeypatch.setattr("unisono.lab.faults.faulty_jobs.time.sleep", slept.append)
    job, _ = trained("throttled")
    assert slept == pytest.approx([0.03] * STARTS_AT + [0.045] * (STEPS - STARTS_AT))
    assert job.fired == STEPS - STARTS_AT


def test_twelve_blocks_normalise_afterwards():
    network = JOBS["deep-post-ln"](**SIZES).network()
    layers = [layer for layer in network if isinstance(layer, torch.nn.TransformerEncoderLayer)]
    assert len(layers) == 12
    assert not any(layer.norm_first for layer in layers)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_jobs_are_as_long_as_promised(name, workers):
    for length in (length_of(name), length_in_demo(name)):
        steps = length.epochs(workers) * length.samples / (length.batch * workers)
        assert steps == pytest.approx(length.steps, rel=0.35)
        assert length.starts_at < 0.5 * steps
