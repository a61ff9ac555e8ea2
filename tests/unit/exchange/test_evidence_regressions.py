"""Odd loaders, odd inputs and late ranks that once were taken wrongly."""

import gc
import json
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from unisono.exchange.evidence_messages import EvidenceMessages as Clerk
from unisono.listen import torch_patches
from unisono.listen.clock import clock_for
from unisono.listen.evidence.batch_tracker import BatchTracker, Leaf, Pull
from unisono.listen.evidence.collector import averager_alive
from unisono.listen.evidence.loader_facts import loader_facts
from unisono.listen.evidence.raw_evidence import RawEvidence
from unisono.listen.handover import Handover
from unisono.listen.messages import AllRanksStep, RankStep
from unisono.measure.compare_evidence import compare
from unisono.measure.evidence_records import EvidenceRecords

CPU = torch.device("cpu")
DATASET = TensorDataset(torch.arange(40.0).reshape(40, 1), torch.arange(40))


def handover(step, **raw_evidence):
    return Handover(
        step=step, time=0.0, due=True, window=0, skipped=False, cost=0.0, clock=clock_for(CPU), began=0.0,
        backward=None, ended=0.5, loss=1.0, scale=None, clip_norm=None, finite_sum=None, reduced_share=None,
        readout=None, raw_evidence=RawEvidence(**raw_evidence),
    ).send(CPU)  # fmt: skip


class Watch(torch_patches.Listener):
    def __init__(self):
        self.watch, self.clerk, self.step, self.told = BatchTracker(), Clerk(), 0, []

    def loaded(self, iterator, data, indices):
        self.told.append((data, indices))
        self.watch.loaded(iterator, data, indices, True)

    def forward(self, inputs):
        self.watch.forward_begins(((inputs,), {}), True)

    def train(self, inputs):
        self.forward(inputs)
        self.watch.backward_ended()
        return self.end()

    def end(self):
        batches, evaluated = self.watch.take()
        signal, messages = self.clerk.take(handover(self.step, batches=batches, evaluated=evaluated))
        self.step += 1
        return batches, signal, messages


@pytest.fixture
def watch():
    watch = Watch()
    torch_patches.connect(watch)
    yield watch
    torch_patches.disconnect(watch)


class Batches:
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return (self.make([first, first + 1]) for first in range(3))

    def __len__(self):
        return 3


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_a_batch_sampler_of_arrays_does_not_stop_training(watch, make):
    assert len(list(DataLoader(DATASET, batch_sampler=Batches(make)))) == 3
    assert [indices for _, indices in watch.told] in ([[0, 1], [1, 2], [2, 3]], [None] * 3)


class Torn(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 2:
            raise OSError("torn")
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_in_the_dataset_indices_still_match(watch, workers):
    iterator = iter(DataLoader(Torn(), batch_size=2, num_workers=workers))
    next(iterator)
    with pytest.raises(OSError, match="torn"):
        next(iterator)
    assert next(iterator).tolist() == [4, 5]
    assert watch.told[-1][1] in ([4, 5], None)


def test_evaluation_at_the_top_of_the_loop_is_not_trained_on(watch):
    validation = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
    for batch in DataLoader(DATASET, batch_size=8, shuffle=True):
        with torch.no_grad():
            for held_out in validation:
                watch.forward(held_out)
        (pull,), *_ = watch.train(batch)
        assert pull.indices == batch[1].tolist()


def test_passes_of_a_prefetched_loader_end(watch):
    """As accelerate and every CUDA prefetcher do: the next batch is loaded before this one is used."""
    keys = []
    loader = DataLoader(DATASET, batch_size=8, shuffle=True)
    for _ in range(3):
        iterator = iter(loader)
        batch = next(iterator)
        while batch is not None:
            ahead = next(iterator, None)
            keys += [message["key"] for message in watch.train(batch)[2]]
            batch = ahead
    assert "facts/loader/0/2" in keys


def test_a_batch_in_parts_is_counted_once(watch):
    inputs, _ = next(iter(DataLoader(DATASET, batch_size=8)))
    for part in inputs.chunk(4):
        watch.forward(part)
        watch.watch.backward_ended()
    _, signal, _ = watch.end()
    assert signal.samples == 8
    assert signal.indices is not None


def test_a_new_loader_every_epoch_takes_bounded_memory_and_messages(watch):
    most = 0
    for _ in range(200):
        for batch in DataLoader(DATASET, batch_size=20, shuffle=True):
            most = max(most, len(json.dumps(watch.train(batch)[2])))
    assert len(watch.watch._known) < 50
    assert len(watch.clerk._passes) < 50
    assert most < 20_000


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_inputs_of_any_type_can_be_heard(dtype):
    numbers = torch.arange(8.0).to(dtype)
    Clerk().take(handover(0, batches=[Pull(leaves=[Leaf("", (8,), numbers)])]))


def test_looking_for_an_averager_touches_nobodys_objects():
    import torch.distributed.algorithms.model_averaging.averagers  # noqa: F401

    class Thing:
        pass

    thing = Thing()
    dead = weakref.proxy(thing)
    del thing
    gc.collect()
    assert averager_alive() is False
    del dead


class Unsized(Sampler):
    def __iter__(self):
        return iter(range(4))

    def __len__(self):
        raise NotImplementedError


def test_a_sampler_or_dataset_that_does_not_know_its_length(watch):
    assert loader_facts(iter(DataLoader(DATASET, sampler=Unsized())))["sampler"] == "Unsized"


def test_evaluated_batches_are_remembered_by_their_indices_alone(watch):
    with torch.no_grad():
        for batch in DataLoader(DATASET, batch_size=8):
            watch.forward(batch)
    next(iter(DataLoader(DATASET)))
    assert all(pull.leaves == [] for pull in watch.watch.evaluated)


def test_ranks_that_name_their_parameters_differently():
    whole = EvidenceRecords(2, attempt=1)
    whole.add(0, {"kind": "audit", "key": "k", "step": 1, "prints": {"a": 1, "b": 2}})
    whole.add(1, {"kind": "audit", "key": "k", "step": 1, "prints": {"a": 1, "c": 2}})
    list(whole.complete({0, 1}))


def test_who_is_late_does_not_open_a_matter_again():
    """Otherwise one rank's words replace those of all."""
    whole, message = EvidenceRecords(2, attempt=1), {"kind": "facts", "topic": "loader", "facts": {"a": "1"}}
    whole.add(0, {**message, "key": "k", "step": 1})
    assert len(list(whole.complete({0, 1}, everything=True))) == 1
    whole.add(1, {**message, "key": "k", "step": 1})
    assert list(whole.complete({0, 1}, everything=True)) == []


def test_the_weights_of_one_rank_alone_are_not_equal_to_anything():
    whole = EvidenceRecords(2, attempt=1)
    whole.add(0, {"kind": "audit", "key": "audit/1", "step": 1, "prints": {"a": 1}})
    assert list(whole.complete({0, 1}, everything=True)) == []


def test_a_learning_rate_of_nan_everywhere_is_no_difference():
    nan = float("nan")
    all_ranks = AllRanksStep(0, tuple(RankStep(step=0, time=0.0, lr=float(str(nan))) for _ in range(2)))
    assert "lr_W" not in compare(all_ranks)


def test_a_loader_that_is_gone_is_not_the_first_one(watch):
    for number in range(2):
        batch = next(iter(DataLoader(DATASET, batch_size=5)))
        gc.collect()
        (pull,), *_ = watch.train(batch)
        assert pull.loader == number


def test_listening_again_to_a_pass_under_way():
    loader = DataLoader(DATASET, batch_size=2, num_workers=2, shuffle=True)
    iterator = iter(loader)

    def hear(batches):
        listener = Watch()
        torch_patches.connect(listener)
        for _ in range(batches):
            next(iterator)
        torch_patches.disconnect(listener)
        return listener.told

    first = Watch()
    torch_patches.connect(first)
    iterator = iter(loader)
    next(iterator)
    torch_patches.disconnect(first)
    for _ in range(3):
        next(iterator)
    assert all(indices in (None, data[1].tolist()) for data, indices in hear(5))


def test_a_key_of_several_numbers_is_one_sample(watch):
    class Pairs(Dataset):
        def __getitem__(self, key):
            return torch.tensor(key)

    list(DataLoader(Pairs(), batch_size=None, sampler=[(1, 224), (2, 224)]))
    assert [indices for _, indices in watch.told] == [None, None]


def test_nested_python_lists_are_not_walked_through_at_every_step(watch):
    class Counting(list):
        visited = 0

        def __iter__(self):
            for value in super().__iter__():
                Counting.visited += 1
                yield value

    watch.watch._latest = None
    watch.watch.forward_begins(Counting(range(100_000)), False)
    from unisono.listen.evidence.batch_tracker import _pull

    _pull([Counting(range(50_000))], False)
    assert Counting.visited < 5_000


def test_evaluation_elsewhere_is_not_trained_on_and_not_kept(watch):
    """By an averaged copy of the model, say: its batches never reach the wrapped one."""
    loader = DataLoader(DATASET, batch_size=5)
    for batch in loader:
        evaluation = DataLoader(TensorDataset(torch.randn(20, 1), torch.arange(20)), batch_size=5)
        held = weakref.ref(evaluation.sampler)
        for _ in evaluation:
            pass
        del evaluation
        (first,), *_ = watch.train(batch)
        assert first.loader == 0
        again, *_ = watch.train(batch)
        assert all(pull.loader is None and pull.indices is None for pull in again), "a second pass over the batch"
    gc.collect()
    assert held() is None or watch.watch._latest.sampler is held()


def test_evaluation_elsewhere_after_a_step_is_not_the_next_batch(watch):
    evaluation = DataLoader(TensorDataset(torch.randn(20, 1), torch.arange(20)), batch_size=5)
    for place, batch in enumerate(DataLoader(DATASET, batch_size=5)):
        (pull,), *_ = watch.train(batch)
        assert (pull.loader, pull.indices[0]) == (0, 5 * place)
        for _ in evaluation:
            pass


def test_lists_of_batches_are_not_held(watch):
    class Batches(list):
        __slots__ = ()

    for _ in range(40):
        for batch in DataLoader(DATASET, batch_sampler=Batches([[0, 1], [2, 3]])):
            watch.train(batch)
    gc.collect()
    assert sum(isinstance(thing, Batches) for thing in gc.get_objects()) <= 1


def test_indices_of_a_loader_that_runs_ahead_are_not_told(watch):
    iterator = iter(DataLoader(DATASET, batch_size=5))
    batch = next(iterator)
    for ahead in iterator:
        watch.train(batch)
        batch = ahead
    assert watch.clerk.batch_of(watch.step - 1, rank=0) is None


def test_who_evaluates_what_it_trains_on_holds_nothing_out():
    whole = EvidenceRecords(2, attempt=1)
    for rank in range(2):
        own = {"drawn": 10, "distinct": 10.0, "level": 0, "kept": list(range(10 * rank, 10 * rank + 10))}
        everything = {"drawn": 20, "distinct": 20.0, "level": 0, "kept": list(range(20))}
        message = {"kind": "coverage", "key": "k", "step": 9, "loader": 0, "epoch": 0, "complete": True}
        whole.add(rank, {**message, "draws": own, "evaluated": everything, "dataset": 20, "repeated": None})
    (record,) = whole.complete({0, 1})
    assert record.held_out == 0.0


def test_a_scaler_that_is_turned_off_steps_anything(watch):
    class Steps:
        stepped = 0

        def step(self):
            self.stepped += 1

    anything = Steps()
    torch.amp.GradScaler("cpu", enabled=False).step(anything)
    assert anything.stepped == 1
