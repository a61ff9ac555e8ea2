"""The collector of evidence beside a real training loop, in a group of one: what it takes, and what it leaves alone."""

import gc
import random
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from unisono.common.schedule import every
from unisono.listen import torch_patches
from unisono.listen.evidence.collector import EvidenceCollector, averager_alive
from unisono.listen.evidence.weight_prints import WeightPrints
from unisono.listen.listening_plan import Announcement, ListeningPlan
from unisono.listen.models.ddp import DDPWrapper

CPU = torch.device("cpu")
DATASET = TensorDataset(torch.randn(40, 4), torch.arange(40.0).reshape(40, 1))


pytestmark = pytest.mark.filterwarnings("ignore:.broadcast_buffers. is deprecated")


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


class Job:
    """A model, its optimizer, and the step tracker's part: it says which backward counts and when a step ends."""

    def __init__(self, plan=None, loader=None, dropout=0.0, **options):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Linear(8, 1))
        self.model = DistributedDataParallel(inner, **options)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.wrapper = DDPWrapper(self.model)
        names, parameters = zip(*self.wrapper.named_parameters(), strict=True)
        self.plan = plan or ListeningPlan(every(1))
        self.complaints = []
        weight_prints = WeightPrints(names, parameters)
        self.collector = EvidenceCollector(
            self.wrapper, weight_prints, CPU, self.plan, self.complaints.append, self.wrapper.facts, loader
        )
        self.step = 0
        self.collector.step_is(0)

    def backward(self, batch, synced=True):
        inputs, targets = batch
        (self.model(inputs) - targets).square().mean().backward()
        self.collector.backward_counted(synced)

    def train(self, batch, syncs=1):
        """One step; its statement."""
        self.optimizer.zero_grad()
        self.backward(batch)
        self.optimizer.step()
        return self.end(syncs)

    def end(self, syncs=1):
        raw_evidence = self.collector.raw_evidence(backwards=1, syncs=syncs)
        self.step += 1
        self.collector.step_is(self.step)
        return raw_evidence


@pytest.fixture
def start():
    jobs = []

    def start_job(**options):
        jobs.append(Job(**options))
        torch_patches.connect(jobs[-1].collector)
        return jobs[-1]

    yield start_job
    for job in jobs:
        torch_patches.disconnect(job.collector)
        job.collector.close()
        assert job.complaints == []


def batches(**options):
    return DataLoader(DATASET, batch_size=8, **options)


def test_a_step_is_collected(start):
    job = start()
    first, second, *_ = (job.train(batch) for batch in batches())
    assert (first.part, first.parts, first.lr) == (0, 1, 0.01)
    assert list(first.weights) == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    assert first.reduced == first.used is not None
    assert None not in (first.state, first.settings, first.weight_square)
    assert first.initial is not None
    assert second.initial is None
    assert first.weights != second.weights
    assert first.settings == second.settings
    assert [pull.indices for pull in first.batches] == [list(range(8))]
    assert (second.passes, second.updates) == (2, 2)
    assert first.facts["optimizer"]["class"] == "Adam"
    assert "optimizer" not in second.facts


def test_the_first_weights_are_those_before_the_first_backward(start):
    same = [start().train(next(iter(batches()))).initial for _ in range(2)]
    assert same[0] == same[1]


def test_gradients_that_change_between_backward_and_step_show(start):
    job = start()
    job.backward(next(iter(batches())))
    job.model.module[0].weight.grad *= 0.5
    job.optimizer.step()
    raw_evidence = job.end()
    assert raw_evidence.reduced != raw_evidence.used


def test_a_step_that_is_not_due_costs_little(start):
    job = start(plan=ListeningPlan(every(100)))
    job.train(next(iter(batches())))
    raw_evidence = job.train(next(iter(batches())))
    assert raw_evidence.parts == 0
    assert raw_evidence.weights == {}
    assert (raw_evidence.reduced, raw_evidence.used, raw_evidence.state, raw_evidence.settings) == (
        None,
        None,
        None,
        None,
    )
    assert raw_evidence.streams == {}
    assert raw_evidence.batches[0].leaves == []
    assert (raw_evidence.lr, raw_evidence.updates) == (0.01, 2)


def test_later_readings_compare_a_part(start):
    job = start()
    statements = [job.train(batch) for batch in batches()]
    assert [(raw_evidence.part, raw_evidence.parts) for raw_evidence in statements[3:]] == [(3, 6), (4, 6)]
    assert list(statements[3].weights) == ["1.bias"]


def test_changed_numbers_of_the_optimizer_show(start):
    job = start()
    first = job.train(next(iter(batches())))
    job.optimizer.param_groups[0]["weight_decay"] = 0.1
    assert job.train(next(iter(batches()))).settings != first.settings


def test_another_models_optimizer_is_not_ours(start):
    job = start()
    other = nn.Linear(1, 1)
    stranger = torch.optim.SGD(other.parameters(), lr=7.0)
    other(torch.ones(1, 1)).sum().backward()
    stranger.step()
    job.backward(next(iter(batches())))
    stranger.step()
    job.optimizer.step()
    raw_evidence = job.end()
    assert (raw_evidence.lr, raw_evidence.updates) == (0.01, 1)


def test_dropout_draws_in_forward(start):
    job = start(dropout=0.5)
    raw_evidence = job.train(next(iter(batches())))
    before, after = raw_evidence.streams["forward"]
    assert not torch.equal(before["torch"], after["torch"])


def test_a_model_without_chance_draws_nothing(start):
    job = start()
    before, after = job.train(next(iter(batches()))).streams["forward"]
    assert torch.equal(before["torch"], after["torch"])


def test_starting_a_pass_is_no_draw_while_loading(start):
    job = start()
    iterator = iter(batches(shuffle=True))
    assert "loading" not in job.train(next(iterator)).streams
    before, after = job.train(next(iterator)).streams["loading"]
    assert torch.equal(before["torch"], after["torch"])


def test_augmentation_in_the_main_process_draws_while_loading(start):
    def noisy(samples):
        inputs, targets = map(torch.stack, zip(*samples, strict=True))
        return inputs + torch.rand(inputs.shape), targets

    job = start()
    iterator = iter(batches(collate_fn=noisy))
    job.train(next(iterator))
    before, after = job.train(next(iterator)).streams["loading"]
    assert not torch.equal(before["torch"], after["torch"])


def test_evaluation_is_no_training(start):
    job = start(dropout=0.5)
    iterator = iter(batches())
    job.train(next(iterator))
    job.model.eval()
    with torch.no_grad():
        for inputs, _ in batches(shuffle=True):
            job.model(inputs)
    job.model.train()
    raw_evidence = job.train(next(iterator))
    assert len(raw_evidence.batches) == 1
    assert len(raw_evidence.evaluated) == 5
    assert raw_evidence.batches[0].loader == 0


def test_buffers_are_compared_where_nobody_shares_them(start):
    assert start().train(next(iter(batches()))).buffers is None
    assert start(broadcast_buffers=False).train(next(iter(batches()))).buffers is not None


def test_a_detail_is_taken_when_it_was_asked_for(start):
    plan = ListeningPlan(every(1))
    plan.apply(Announcement(start=1, detail=True))
    job = start(plan=plan)
    first, second, third, *_ = (job.train(batch) for batch in batches())
    assert [bool(raw_evidence.projections) for raw_evidence in (first, second, third)] == [False, True, False]
    assert len(second.projections) == 6


def test_averaged_models_are_not_compared(start):
    assert not averager_alive()
    averager = PeriodicModelAverager(period=4)
    assert averager_alive()
    job = start()
    batch = next(iter(batches()))
    first, second = job.train(batch, syncs=0), job.train(batch, syncs=0)
    assert first.facts["model"]["averager"] == "yes"
    assert (first.parts, second.parts, second.weights) == (0, 0, {})
    del averager


def test_unsynchronised_steps_without_an_averager_are_compared(start):
    job = start()
    batch = next(iter(batches()))
    first, second = job.train(batch, syncs=0), job.train(batch, syncs=0)
    assert first.facts["model"]["averager"] == "no"
    assert "model" not in second.facts
    assert first.weights
    assert first.start is None
    assert second.start is not None


def test_a_loader_of_another_make_is_described_once_and_let_go(start):
    class Loader:
        sampler = torch.utils.data.DistributedSampler(DATASET, 4, 3)

    loader = Loader()
    watched = weakref.ref(loader)
    job = start(loader=loader)
    del loader
    batch = torch.randn(8, 4), torch.zeros(8, 1)
    assert job.train(batch).facts["loader"]["sampler rank"] == "3"
    assert "loader" not in job.train(batch).facts
    assert watched() is None


def test_training_is_the_same_with_and_without():
    def run(collected):
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(5)
        job = Job(dropout=0.3)
        if collected:
            torch_patches.connect(job.collector)
        for batch in batches(shuffle=True):
            job.train(batch)
        if collected:
            torch_patches.disconnect(job.collector)
            job.collector.close()
            assert job.complaints == []
        weights = [parameter.detach().clone() for parameter in job.model.parameters()]
        return weights, torch.rand(1).item(), random.random(), np.random.rand()

    (alone, *chance), (watched, *same_chance) = run(collected=False), run(collected=True)
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
    assert chance == same_chance


def test_the_users_objects_are_free_to_go(start):
    job = start()
    job.train(next(iter(batches())))
    job.collector.close()
    watched = [weakref.ref(thing) for thing in (job.model, job.optimizer, *job.model.parameters())]
    job.model = job.optimizer = None
    gc.collect()
    assert [ref() for ref in watched] == [None] * len(watched)


def test_a_closed_witness_hears_nothing(start):
    job = start()
    job.collector.close()
    raw_evidence = job.train(next(iter(batches())))
    assert raw_evidence.batches == []
    assert raw_evidence.weights == {}


def test_an_error_of_ours_is_told_and_swallowed():
    job = Job()
    torch_patches.connect(job.collector)
    try:
        job.collector._weight_prints.weights = None
        job.train(next(iter(batches())))
        job.train(next(iter(batches())))
    finally:
        torch_patches.disconnect(job.collector)
        job.collector.close()
    assert "training is not affected" in job.complaints[0]


def test_a_forked_child_is_not_heard(start):
    job = start()
    job.collector.pid += 1
    assert job.train(next(iter(batches()))).batches == []
