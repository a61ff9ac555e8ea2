"""Which batch went into which backward pass."""

import gc
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from unisono.listen import torch_patches
from unisono.listen.evidence.batch_tracker import MOST_EVALUATED, MOST_LEAVES, BatchTracker

DATASET = TensorDataset(torch.arange(20.0).reshape(20, 1), torch.arange(20))


class Watch(torch_patches.Listener):
    """The tracker, connected as the collector connects it."""

    def __init__(self, due=True):
        self.watch, self.due = BatchTracker(), due

    def loaded(self, iterator, data, indices):
        self.watch.loaded(iterator, data, indices, self.due)

    def forward(self, inputs):
        self.watch.forward_begins(((inputs,), {}), self.due)

    def train(self, inputs):
        """A whole step; its batches."""
        self.forward(inputs)
        self.watch.backward_ended()
        return self.watch.take()[0]

    def evaluate(self, loader):
        with torch.no_grad():
            for batch in loader:
                self.forward(batch)


@pytest.fixture
def watch():
    watch = Watch()
    torch_patches.connect(watch)
    yield watch
    torch_patches.disconnect(watch)


def contents(pull):
    return [leaf.numbers.tolist() for leaf in pull.leaves]


def test_a_step_has_its_batch(watch):
    for place, batch in enumerate(DataLoader(DATASET, batch_size=5)):
        (pull,) = watch.train(batch)
        expected = list(range(5 * place, 5 * place + 5))
        assert (pull.indices, pull.samples, pull.loader) == (expected, 5, 0)
        assert pull.first is (place == 0)
        assert bool(pull.facts) is (place == 0)
        assert contents(pull) == [expected, expected]


def test_every_pass_begins_with_its_facts(watch):
    loader = DataLoader(DATASET, batch_size=10)
    pulls = [pull for _ in range(3) for batch in loader for pull in watch.train(batch)]
    assert [pull.first for pull in pulls] == [True, False] * 3
    assert [bool(pull.facts) for pull in pulls] == [True, False] * 3
    assert {pull.loader for pull in pulls} == {0}


def test_contents_are_read_when_they_are_due(watch):
    watch.due = False
    (pull,) = watch.train(next(iter(DataLoader(DATASET, batch_size=5))))
    assert pull.leaves == []
    assert pull.indices == [0, 1, 2, 3, 4]


def test_contents_are_copies(watch):
    batch = next(iter(DataLoader(DATASET, batch_size=5)))
    batch[0].fill_(-1)
    (pull,) = watch.train(batch)
    assert contents(pull)[0] == [0, 1, 2, 3, 4]


def test_accumulated_batches_all_count(watch):
    for batch in DataLoader(DATASET, batch_size=5):
        watch.forward(batch)
        watch.watch.backward_ended()
    pulls, _ = watch.watch.take()
    assert [pull.indices[0] for pull in pulls] == [0, 5, 10, 15]


def test_a_batch_counts_once_however_often_it_is_used(watch):
    watch.due = False
    batch = next(iter(DataLoader(DATASET, batch_size=5)))
    assert len(watch.train(batch)) == 1
    assert watch.train(batch) == []
    assert watch.train(batch) == []


def test_two_backward_passes_after_one_forward(watch):
    batch = next(iter(DataLoader(DATASET, batch_size=5)))
    watch.forward(batch)
    watch.watch.backward_ended()
    watch.watch.backward_ended()
    assert len(watch.watch.take()[0]) == 1


def test_a_batch_that_never_reaches_backward_does_not_count(watch):
    first, second = DataLoader(DATASET, batch_size=10)
    del first
    (pull,) = watch.train(second)
    assert pull.indices == list(range(10, 20))


def test_a_forward_pass_alone_does_not_count(watch):
    for batch in DataLoader(DATASET, batch_size=10):
        watch.forward(batch)
    assert watch.watch.take() == ([], [])


def test_evaluation_between_steps_is_kept_apart(watch):
    validation = TensorDataset(torch.arange(6.0))
    for place, batch in enumerate(DataLoader(DATASET, batch_size=10)):
        watch.forward(batch)
        watch.watch.backward_ended()
        pulls, evaluated = watch.watch.take()
        assert [pull.indices[0] for pull in pulls] == [10 * place]
        assert [pull.indices for pull in evaluated] == ([[0, 1], [2, 3], [4, 5]] if place else [])
        watch.evaluate(DataLoader(validation, batch_size=2))
    assert len(watch.watch._known) == 1


def test_evaluating_forever_takes_bounded_memory(watch):
    watch.due = False
    watch.evaluate(DataLoader(TensorDataset(torch.arange(MOST_EVALUATED + 50))))
    assert len(watch.watch.take()[1]) == MOST_EVALUATED
    assert watch.watch.evaluated == []


def test_a_batch_that_is_first_looked_at_without_gradients_and_then_trained_on_counts(watch):
    batch = next(iter(DataLoader(DATASET, batch_size=5)))
    with torch.no_grad():
        watch.forward(batch)
    assert [pull.indices for pull in watch.train(batch)] == [[0, 1, 2, 3, 4]]
    next(iter(DataLoader(DATASET, batch_size=5)))
    assert watch.watch.evaluated == []


def test_loaders_are_numbered_by_first_use_in_training(watch):
    evaluated, one, other = (DataLoader(DATASET, batch_size=4) for _ in range(3))
    watch.evaluate(evaluated)
    numbers = [watch.train(next(iter(loader)))[0].loader for loader in (one, other, one)]
    assert numbers == [0, 1, 0]


def test_without_a_loader_the_models_inputs_are_the_batch(watch):
    assert not watch.watch.knows_a_loader
    (pull,) = watch.train({"x": torch.ones(3, 2), "y": torch.zeros(3)})
    assert (pull.loader, pull.indices, pull.samples) == (None, None, 3)
    assert [leaf.name for leaf in pull.leaves] == ["x", "y"]
    assert not watch.watch.knows_a_loader


def test_without_a_loader_nothing_is_read_unless_due(watch):
    watch.due = False
    assert watch.train(torch.ones(3)) == []


def test_a_model_that_is_called_past_its_wrapper_still_has_its_batch(watch):
    next(iter(DataLoader(DATASET, batch_size=5)))
    watch.watch.backward_ended()
    assert [pull.indices for pull in watch.watch.take()[0]] == [[0, 1, 2, 3, 4]]


def test_a_subset_is_told_by_the_indices_underneath(watch):
    dataset = Subset(Subset(DATASET, range(10, 20)), [3, 4])
    (pull,) = watch.train(next(iter(DataLoader(dataset, batch_size=2))))
    assert pull.indices == [13, 14]


def test_an_iterable_dataset_has_contents_alone(watch):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.arange(8.0))

    (pull,) = watch.train(next(iter(DataLoader(Stream(), batch_size=4))))
    assert (pull.indices, pull.samples, pull.loader) == (None, 4, 0)
    assert contents(pull) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (torch.ones(2), [""]),
        ([torch.ones(2), (torch.ones(2), 3, "text", None)], ["", ""]),
        ({"a": torch.ones(2), "b": {"c": torch.ones(2)}, 5: torch.ones(2)}, ["a", "c", "5"]),
        ([torch.empty(0), torch.ones(2).to_sparse(), torch.tensor(1.0)], [""]),
        ([torch.ones(1)] * 100, [""] * MOST_LEAVES),
        (object(), []),
        (None, []),
    ],
    ids=["tensor", "lists", "mappings", "odd tensors", "many", "object", "nothing"],
)
def test_tensors_are_found_wherever_they_are(watch, data, names):
    pulls = watch.train(data)
    assert [leaf.name for pull in pulls for leaf in pull.leaves] == names


def test_large_tensors_are_sampled(watch):
    (pull,) = watch.train(torch.zeros(64, 3, 64, 64))
    (leaf,) = pull.leaves
    assert leaf.shape == (64, 3, 64, 64)
    assert leaf.numbers.numel() <= 4096


def test_inputs_that_need_gradients_are_not_held_by_the_graph(watch):
    inputs = torch.ones(3, requires_grad=True) * 2
    (pull,) = watch.train(inputs)
    assert not pull.leaves[0].numbers.requires_grad


class Large(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.zeros(2)


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_of_the_users_is_kept(watch, workers):
    dataset = Large()
    loader = DataLoader(dataset, batch_size=2, num_workers=workers)
    iterator = iter(loader)
    batch = next(iterator)
    (pull,) = watch.train(batch)
    watched = [weakref.ref(thing) for thing in (dataset, loader, iterator, loader.batch_sampler, batch)]
    del dataset, loader, iterator, batch
    gc.collect()
    assert [ref() for ref in watched] == [None] * 5
    assert pull.sampler is None


def test_a_loader_that_is_gone_before_backward_is_no_error(watch):
    batch = next(iter(DataLoader(DATASET, batch_size=5)))
    gc.collect()
    (pull,) = watch.train(batch)
    assert pull.loader == 0


def test_a_plain_list_of_batches_is_a_loader_too(watch):
    loader = DataLoader(DATASET, batch_sampler=[[1, 2], [3]])
    assert [watch.train(batch)[0].loader for batch in loader] == [0, 0]


class Sampler(torch.utils.data.SequentialSampler):
    epoch = 0


@pytest.mark.parametrize("looked_at", [1, 3])
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_look_at_some_batches_is_no_pass(watch, looked_at, evaluates):
    sampler = Sampler(DATASET)
    loader, others = DataLoader(DATASET, batch_size=5, sampler=sampler), DataLoader(DATASET, batch_size=10)
    passes = []
    for sampler_epoch in range(3):
        peeked = iter(loader)
        for _ in range(looked_at):
            next(peeked)
        if evaluates:
            watch.evaluate(others)
        sampler.epoch = sampler_epoch
        pulls = [pull for batch in loader for pull in watch.train(batch)]
        assert [pull.indices[0] for pull in pulls] == [0, 5, 10, 15]
        passes += [pull.facts["sampler epoch"] for pull in pulls if pull.first]
    assert passes == ["0", "1", "2"]


@pytest.mark.parametrize("loaded", [False, True])
def test_what_the_model_got_is_kept_beside_what_was_loaded(watch, loaded):
    batch = next(iter(DataLoader(DATASET, batch_size=10))) if loaded else [torch.zeros(10, 1), torch.zeros(10)]
    (pull,) = watch.train((torch.arange(10), 2 * batch[0] + 1))
    assert pull.fed.tolist() == (2 * batch[0] + 1).flatten().tolist()


def test_whole_numbers_masks_and_a_few_numbers_are_no_inputs(watch):
    watch.watch.forward_begins(
        ((), {"input_ids": torch.arange(20), "mask": torch.ones(20), "scale": torch.ones(2)}), True
    )
    watch.watch.backward_ended()
    (pull,) = watch.watch.take()[0]
    assert pull.fed is None
