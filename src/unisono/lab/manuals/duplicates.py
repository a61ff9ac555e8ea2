"""Workers that all read one shard, each with light augmentation of its own, and healthy training that looks like it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from unisono.lab.manuals.case import ManualCase
from unisono.lab.manuals.training import CLASSES, Batch, Clouds, Model, network, train, wrapped

STEPS = 150
LIGHT = 0.02
"""Standard deviation of the noise that augmentation adds, where a class has 1."""


def _own(seed: int) -> Generator:
    return Generator().manual_seed(77_000 + 1_000 * seed + dist.get_rank())


def _augmented(features: Tensor, own: Generator) -> Tensor:
    return features + LIGHT * torch.randn(features.shape, generator=own)


def _optimizer(model: Model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 3e-3)


def one_file(seed: int) -> None:
    """A reader without a loader: it opens the same file on every rank. Labels stay outside of the model."""
    file, own, model = Clouds(seed, reader=0), _own(seed), wrapped(seed)

    def batch_at(step: int) -> Batch:
        features, labels = file.batch(16)
        return _augmented(features, own), labels

    train(model, _optimizer(model), STEPS, batch_at)


def huge_batches(seed: int) -> None:
    """Every rank reads samples of its own, so many that their gradients agree to more than 0.99 all the time."""
    data, model = Clouds(seed), wrapped(seed)
    train(model, torch.optim.SGD(model.parameters(), 0.02), 120, lambda step: data.batch(8192))


class Stream(IterableDataset[Batch]):
    """Goes through one reader's samples for ever."""

    def __init__(self, data: Clouds, own: Generator | None, classes: int = CLASSES) -> None:
        self._data, self._own, self._classes = data, own, classes

    def __iter__(self) -> Iterator[Batch]:
        while True:
            features, labels = self._data.batch(1)
            features = features if self._own is None else _augmented(features, self._own)
            yield features[0], labels[0] % self._classes


def _train_on_stream(seed: int, stream: Stream, batch: int) -> None:
    model, batches = wrapped(seed), iter(DataLoader(stream, batch))
    train(model, _optimizer(model), STEPS, lambda step: next(batches))


def one_stream(seed: int) -> None:
    """An iterable dataset that does not ask for its rank; augmentation makes every worker's samples differ."""
    _train_on_stream(seed, Stream(Clouds(seed, reader=0), _own(seed)), 16)


def few_classes(seed: int) -> None:
    """Batches of two samples of two classes: the labels of two workers coincide at every fourth step."""
    _train_on_stream(seed, Stream(Clouds(seed), None, classes=2), 2)


class WithLoss(nn.Module):
    """Takes the labels with the inputs, and gives the loss."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.network = network(seed)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(features), labels)


def _train_with_loss(model: Model, batches: Iterator[Batch]) -> None:
    optimizer = _optimizer(model)
    for features, labels in batches:
        optimizer.zero_grad()
        model(features, labels).backward()
        optimizer.step()


def labels_in_forward(seed: int) -> None:
    """One file for all ranks, and a model that is given the labels, too."""
    file, own = Clouds(seed, reader=0), _own(seed)
    batches = (file.batch(16) for _ in range(STEPS))
    _train_with_loss(DistributedDataParallel(WithLoss(seed)), ((_augmented(x, own), y) for x, y in batches))


class Pairs(nn.Module):
    """Learns which of a batch's noisy copies belongs to which sample: the labels are the places in the batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.network = network(seed)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        first, second = features.unbind(1)
        return nn.functional.cross_entropy(self.network(first) @ self.network(second).T, labels)


def constant_targets(seed: int) -> None:
    """Contrastive learning: the labels are the same numbers on every worker, at every step."""
    data, own, places = Clouds(seed), _own(seed), torch.arange(16)
    seen = (data.batch(16)[0] for _ in range(STEPS))
    views = (torch.stack((x + _noise(x, own), x + _noise(x, own)), 1) for x in seen)
    _train_with_loss(DistributedDataParallel(Pairs(seed)), ((x, places) for x in views))


def _noise(features: Tensor, own: Generator) -> Tensor:
    return 0.3 * torch.randn(features.shape, generator=own)


class File(Dataset[Batch]):
    """A file of samples, augmented where a generator is given."""

    def __init__(self, data: Clouds, samples: int, own: Generator | None = None) -> None:
        self._features, self._labels = data.batch(samples)
        self._own = own

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Batch:
        features = self._features[index]
        return (features if self._own is None else _augmented(features, self._own)), self._labels[index]


def _train_on_loader(seed: int, dataset: File, order: Generator) -> None:
    model, loader = wrapped(seed), DataLoader(dataset, 16, sampler=RandomSampler(dataset, generator=order))
    batches = _endless(loader)
    train(model, _optimizer(model), STEPS, lambda step: next(batches))


def _endless(loader: DataLoader[Batch]) -> Iterator[Batch]:
    while True:
        yield from loader


def one_order(seed: int) -> None:
    """A shuffling loader without a DistributedSampler, seeded equally on all ranks; its dataset augments."""
    _train_on_loader(seed, File(Clouds(seed, reader=0), 4096, _own(seed)), Generator().manual_seed(seed))


def own_files(seed: int) -> None:
    """Every rank has a file of its own, and counts its samples from zero, in the same order as the others."""
    _train_on_loader(seed, File(Clouds(seed), 4096), Generator().manual_seed(seed))


CAUSE = "same-samples-augmented"
HIGH, CONSTANT = "Abnormally High", "Near-Zero Constant"
CASES = (
    ManualCase("copies-of-one-file", "UN101", HIGH, 4, one_file, huge_batches, CAUSE),
    ManualCase("copies-of-one-stream", "UN101", CONSTANT, 4, one_stream, few_classes, CAUSE, "critical"),
    ManualCase("copies-with-labels", "UN101", CONSTANT, 2, labels_in_forward, constant_targets, CAUSE, "critical"),
    ManualCase("copies-in-one-order", "UN101", CONSTANT, 2, one_order, own_files, CAUSE, "critical"),
)
