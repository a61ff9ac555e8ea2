"""Each batch of a DataLoader is told with the dataset indices it was asked for, or with none."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, dataloader

from unisono.listen import dataloader_patches, torch_patches

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
NEXT = dataloader._BaseDataLoaderIter.__next__


class Squares(Dataset):
    def __init__(self, size=20):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.as_tensor(index) ** 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10).float())


class Listener(torch_patches.Listener):
    def __init__(self):
        self.told = []
        self.began = 0

    def loading_begins(self, iterator):
        self.began += 1

    def loaded(self, iterator, data, indices):
        self.told.append((data, indices))

    def check(self, expected_batches=None):
        """Every batch holds the squares of the indices that were told with it."""
        for data, indices in self.told:
            assert data.reshape(-1).tolist() == [index**2 for index in indices]
            assert all(type(index) is int for index in indices)
        assert expected_batches is None or len(self.told) == expected_batches


@pytest.fixture
def listener():
    listener = Listener()
    torch_patches.connect(listener)
    yield listener
    torch_patches.disconnect(listener)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 3, "shuffle": True},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_size": None, "sampler": BatchSampler(SequentialSampler(range(20)), 4, drop_last=False)},
        {"batch_size": 4, "sampler": np.random.default_rng(0).permutation(20)},
        {"batch_size": 4, "sampler": torch.randperm(20)},
        {"batch_sampler": [[3, 1], [2]]},
        {"batch_sampler": [(3, 1), (2,)]},
        {"batch_size": 2, "num_workers": 2, "shuffle": True},
        {"batch_size": 2, "num_workers": 2, "prefetch_factor": 4, "shuffle": True},
        {"batch_size": 8, "num_workers": 2, "persistent_workers": True},
    ],
    ids=lambda options: " ".join(options),
)
def test_indices_go_with_their_batch(listener, options):
    loader = DataLoader(Squares(), **options)
    for _ in range(2):
        listener.told.clear()
        assert len(list(loader)) == len(loader)
        listener.check(expected_batches=len(loader))


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_an_abandoned_pass_does_not_disturb_the_next(listener, workers):
    loader = DataLoader(Squares(), batch_size=2, shuffle=True, **workers)
    for stop in (2, 0, 9, 100):
        for number, _ in enumerate(loader):
            if number == stop:
                break
    listener.check(expected_batches=3 + 1 + 10 + 10)


def test_two_loaders_in_turn(listener):
    for _ in zip(DataLoader(Squares(), batch_size=3, shuffle=True), DataLoader(Squares(9), batch_size=2), strict=False):
        pass
    listener.check()


def test_a_training_pass_around_an_evaluation(listener):
    for _ in DataLoader(Squares(), batch_size=4, num_workers=2, shuffle=True):
        list(DataLoader(Squares(5), batch_size=2))
    listener.check(expected_batches=5 + 5 * 3)


@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": None}, {"batch_size": 4, "num_workers": 2}])
def test_an_iterable_dataset_has_no_indices(listener, options):
    list(DataLoader(Stream(), **options))
    assert listener.told
    assert {indices is None for _, indices in listener.told} == {True}


def test_batches_in_any_order_have_no_certain_indices(listener):
    list(DataLoader(Squares(), batch_size=2, num_workers=2, in_order=False))
    assert {indices is None for _, indices in listener.told} == {True}


def test_without_worker_processes_the_order_is_certain(listener):
    list(DataLoader(Squares(), batch_size=2, in_order=False))
    listener.check(expected_batches=10)


def test_keys_that_are_no_numbers_are_not_indices(listener):
    loader = DataLoader({"a": torch.zeros(1), "b": torch.ones(1)}, sampler=["b", "a"])
    assert len(list(loader)) == 2
    assert [indices for _, indices in listener.told] == [None, None]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_began_unheard(workers):
    iterator = iter(DataLoader(Squares(), batch_size=2, num_workers=workers))
    next(iterator)
    listener = Listener()
    torch_patches.connect(listener)
    try:
        rest = list(iterator)
    finally:
        torch_patches.disconnect(listener)
    assert len(rest) == 9
    if workers:
        assert {indices is None for _, indices in listener.told} == {True}
    else:
        listener.check(expected_batches=9)


def test_the_end_of_a_pass_is_passed_on(listener):
    iterator = iter(DataLoader(Squares(2)))
    next(iterator), next(iterator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    assert listener.began == 2, "a sampler that has nothing left draws nothing"
    listener.check(expected_batches=2)


def test_an_error_in_the_dataset_is_passed_on(listener):
    with pytest.raises(IndexError, match="list index"):
        next(iter(DataLoader([1, 2], sampler=[5])))


def test_random_numbers_stay_as_they_were():
    def order():
        torch.manual_seed(0)
        return [batch.tolist() for batch in DataLoader(Squares(), batch_size=3, shuffle=True)], torch.rand(3).tolist()

    alone = order()
    listener = Listener()
    torch_patches.connect(listener)
    try:
        assert order() == alone
    finally:
        torch_patches.disconnect(listener)


@pytest.mark.parametrize("workers", [0, 2])
def test_iterators_and_datasets_are_free_to_go(listener, workers):
    class Untold(torch_patches.Listener):
        pass

    torch_patches.disconnect(listener)
    quiet = Untold()
    torch_patches.connect(quiet)
    try:
        dataset = Squares()
        iterator = iter(DataLoader(dataset, batch_size=2, num_workers=workers))
        next(iterator)
        watched = weakref.ref(iterator), weakref.ref(dataset)
        del iterator, dataset
        gc.collect()
        assert [ref() for ref in watched] == [None, None]
        assert not dataloader_patches._drawn
    finally:
        torch_patches.disconnect(quiet)


def test_what_is_remembered_does_not_grow(listener):
    loader = DataLoader(Squares(), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(4):
        next(iter(loader))
    list(loader)
    assert [len(drawn) for drawn in dataloader_patches._drawn.values()] == [0]


def test_the_taps_are_taken_out_again(listener):
    torch_patches.disconnect(listener)
    assert dataloader._BaseDataLoaderIter.__next__ is NEXT


def test_other_internals_are_left_alone(monkeypatch):
    monkeypatch.setattr(dataloader_patches, "ITERATOR", None)
    dataloader_patches.install(lambda *_: pytest.fail("nothing is to be replaced"), print, print)
