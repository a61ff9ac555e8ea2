"""What a loader says of itself."""

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from unisono.listen.evidence.loader_facts import loader_facts, resolved, sampler_facts

DATASET = TensorDataset(torch.arange(20))


def facts(dataset=DATASET, **options):
    return loader_facts(iter(DataLoader(dataset, **options)))


def test_a_distributed_sampler_tells_its_share():
    sampler = DistributedSampler(DATASET, num_replicas=4, rank=2, seed=7, drop_last=True)
    sampler.set_epoch(3)
    assert facts(batch_size=2, sampler=sampler) == {
        "workers": "0",
        "dataset kind": "map",
        "sampler": "DistributedSampler",
        "sampler rank": "2",
        "sampler replicas": "4",
        "sampler seed": "7",
        "sampler epoch": "3",
        "shuffle": "yes",
        "drop last": "yes",
        "batch size": "2",
        "length": "3",
        "dataset": "20",
    }


def test_a_plain_loader_has_no_share_to_tell():
    assert facts(batch_size=6) == {
        "workers": "0",
        "dataset kind": "map",
        "sampler": "SequentialSampler",
        "shuffle": "no",
        "drop last": "no",
        "batch size": "6",
        "length": "4",
        "dataset": "20",
    }


def test_shuffling_with_and_without_replacement():
    assert facts(shuffle=True)["shuffle"] == "yes"
    assert facts(shuffle=True)["replacement"] == "no"
    assert facts(sampler=RandomSampler(DATASET, replacement=True))["replacement"] == "yes"
    assert facts(sampler=WeightedRandomSampler([1.0] * 20, 20))["replacement"] == "yes"
    assert facts(sampler=DistributedSampler(DATASET, 2, 0, shuffle=False))["shuffle"] == "no"


def test_an_iterable_dataset_has_no_length():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1, 2])

        def __len__(self):
            raise AssertionError("asking would make torch warn later")

    found = facts(Stream(), batch_size=2)
    assert found["dataset kind"] == "iterable"
    assert not {"length", "dataset", "shuffle", "sampler rank"} & found.keys()


def test_without_batches_the_sampler_is_asked_directly():
    assert facts(batch_size=None, sampler=DistributedSampler(DATASET, 2, 1))["sampler rank"] == "1"


def test_plain_lists_of_batches():
    found = facts(batch_sampler=[[1, 2], [3]])
    assert found["sampler"] == "list"
    assert "length" not in found


def test_nobody_but_torch_is_asked_for_a_length():
    """Batches of some samplers are made, with random numbers, when they are counted."""
    asked = []

    class Buckets(BatchSampler):
        def __len__(self):
            asked.append(True)
            return 1

    facts(batch_sampler=Buckets(SequentialSampler(DATASET), 4, drop_last=False))
    assert asked == []


def test_samples_repeated_on_purpose():
    class Repeating(DistributedSampler):
        num_repeats = 3

    assert facts(sampler=Repeating(DATASET, 2, 0))["repeats"] == "3"


def test_nested_samplers_are_followed():
    inner = DistributedSampler(DATASET, 2, 1)
    assert facts(batch_sampler=BatchSampler(inner, 4, drop_last=False))["sampler rank"] == "1"


def test_a_sampler_that_holds_itself_ends():
    class Snake(SequentialSampler):
        @property
        def sampler(self):
            return self

    assert facts(sampler=Snake(DATASET))["sampler"] == "Snake"


def test_the_names_of_accelerate_are_known():
    class BatchSamplerShard:
        process_index, num_processes = 1, 4

        def __init__(self):
            self.batch_sampler = BatchSampler(RandomSampler(DATASET), 2, drop_last=False)

        def __iter__(self):
            return iter([])

        def __len__(self):
            return 3

    found = facts(batch_sampler=BatchSamplerShard())
    assert (found["sampler rank"], found["sampler replicas"], found["shuffle"]) == ("1", "4", "yes")


def test_what_is_no_number_is_not_told():
    sampler = DistributedSampler(DATASET, 2, 1)
    sampler.seed, sampler.epoch = "time", True
    assert not {"sampler seed", "sampler epoch"} & facts(sampler=sampler).keys()


@pytest.mark.parametrize(
    "wrap", [lambda loader: loader, lambda loader: loader.batch_sampler, lambda loader: loader.sampler]
)
def test_any_other_loader_is_asked_for_its_sampler(wrap):
    loader = DataLoader(DATASET, sampler=DistributedSampler(DATASET, 2, 1))
    found = sampler_facts(wrap(loader))
    assert (found["sampler rank"], found["number"], found["pass"]) == ("1", "0", "0")


def test_a_loader_without_sampler_still_says_something():
    assert sampler_facts(object())["sampler"] == "object"


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor], ids=["list", "tuple", "numpy", "torch"])
def test_positions_in_subsets_become_indices_of_the_dataset(form):
    outer = Subset(Subset(DATASET, form([10, 11, 12, 13])), form([3, 1]))
    dataset, found = resolved(outer, [0, 1])
    assert found == [13, 11]
    assert dataset == resolved(DATASET, [0])[0]
    assert all(type(index) is int for index in found)


def test_a_dataset_that_is_no_subset_keeps_its_indices():
    assert resolved(DATASET, (1, 2))[1] == [1, 2]
    assert resolved(Subset(DATASET, range(5, 10)), [0, 4])[1] == [5, 9]


def test_datasets_that_both_count_from_zero_are_told_apart():
    other = TensorDataset(torch.arange(20))
    assert resolved(DATASET, [0])[0] != resolved(other, [0])[0]
