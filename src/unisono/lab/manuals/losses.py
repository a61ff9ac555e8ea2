"""The loss dispersion manual's cases, and its critical warning."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from unisono.lab.manuals.case import ManualCase
from unisono.lab.manuals.training import CLASSES, Batch, Clouds, train, wrapped


def _share(step: int, begin: int, length: int) -> float:
    """0 up to a step, 1 from `length` steps later on."""
    return min(1.0, max(0.0, (step - begin) / length))


def _train(seed: int, steps: int, batch_at: Callable[[Clouds, int], Batch], rate: float, unequal: float = 0.0) -> None:
    data, model = Clouds(seed, unequal=unequal), wrapped(seed)
    train(model, torch.optim.AdamW(model.parameters(), rate), steps, lambda step: batch_at(data, step))


def toxic_batch(seed: int) -> None:
    """One worker reads one corrupted batch: numbers of another scale, which have nothing to do with their labels."""

    def batch_at(data: Clouds, step: int) -> Batch:
        features, labels = data.batch(16)
        corrupted = step == 150 and dist.get_rank() == seed % dist.get_world_size()
        return (200 * torch.randn_like(features) if corrupted else features), labels

    _train(seed, 220, batch_at, 3e-3)


def heavy_tails(seed: int) -> None:
    """One sample in a hundred is four times as large as the others, on every worker, all the time."""
    _train(seed, 400, lambda data, step: _with_rare(data, data.batch(16)), 3e-3)


def _with_rare(data: Clouds, batch: Batch) -> Batch:
    features, labels = batch
    rare = torch.rand(len(labels), generator=data.generator) < 0.01
    return features * (1 + 3 * rare.float())[:, None], labels


def _of_one_class(data: Clouds, labels: Tensor, share: float) -> Tensor:
    """A share of the labels becomes one class, another one at every step and on every rank."""
    chosen = torch.rand(len(labels), generator=data.generator) < share
    return torch.where(chosen, torch.randint(CLASSES, (1,), generator=data.generator), labels)


def _cleaner_and_dirtier(data: Clouds, share: float) -> Batch:
    """A quarter of the labels is wrong everywhere; then half of the workers read a cleaner source, the others a
    dirtier one, and the mean stays where it was."""
    features, labels = data.batch(64)
    wrong = 0.25 + (0.25 if dist.get_rank() % 2 else -0.25) * share
    drawn = torch.rand(len(labels), generator=data.generator) < wrong
    return features, torch.where(drawn, data.labels(len(labels)), labels)


def sources_part_at_once(seed: int) -> None:
    """At step 200 the workers' sources become unlike."""
    _train(seed, 240, lambda data, step: _cleaner_and_dirtier(data, float(step >= 200)), 3e-3)


def sources_part_slowly(seed: int) -> None:
    """From step 400 on the workers' sources become less and less alike."""
    _train(seed, 800, lambda data, step: _cleaner_and_dirtier(data, _share(step, 400, 400)), 3e-3)


def sorted_more_and_more(seed: int) -> None:
    """A shuffling buffer runs dry while training goes on: batches come to hold one class each, and the loss falls."""

    def batch_at(data: Clouds, step: int) -> Batch:
        labels = _of_one_class(data, data.labels(64), _share(step, 500, 500))
        return data.around(labels), labels

    _train(seed, 1000, batch_at, 5e-4, unequal=1.4)


def sources_drift_apart(seed: int) -> None:
    """Half of the workers come to read easier samples, the other half harder ones; the mean loss falls."""

    def batch_at(data: Clouds, step: int) -> Batch:
        features, labels = data.batch(64)
        towards = 0.5 if dist.get_rank() % 2 else -0.2
        centres = data.centres[labels]
        return centres + (features - centres) * (1 - towards * _share(step, 400, 500)), labels

    _train(seed, 900, batch_at, 3e-4)


def early_rise(seed: int) -> None:
    """Slow learning from the start: an untrained model is wrong everywhere alike, a better one is not."""
    _train(seed, 1000, lambda data, step: data.batch(16), 3e-4)


def learnt_by_heart(seed: int) -> None:
    """Few samples, again and again: the loss falls to nothing, and ever fewer samples make up what is left of it."""

    kept: list[Batch] = []

    def batch_at(data: Clouds, step: int) -> Batch:
        kept.extend([] if kept else [data.batch(256)])
        features, labels = kept[0]
        here = torch.randint(len(labels), (16,), generator=data.generator)
        return features[here], labels[here]

    _train(seed, 1000, batch_at, 1e-3)


def harder_data(seed: int) -> None:
    """A curriculum goes on to harder samples, for all workers at once."""

    def batch_at(data: Clouds, step: int) -> Batch:
        features, labels = data.batch(16)
        return (features if step < 500 else features + torch.randn(features.shape, generator=data.generator)), labels

    _train(seed, 1000, batch_at, 1e-3)


WALK, NAME = "UN410", "Critical Warning"
CASES = (
    ManualCase("single-point-anomaly", "UN104", "Single-point Anomaly", 4, toxic_batch, heavy_tails, "bad-sample"),
    ManualCase("severe-spikes", "UN408", "Severe Spikes", 4, sources_part_at_once, heavy_tails),
    ManualCase("loss-divergence", "UN409", "Gradual Divergence", 4, sources_part_slowly, harder_data, "data-drift"),
    ManualCase("walk-of-sorted-batches", WALK, NAME, 4, sorted_more_and_more, early_rise, "not-shuffled"),
    ManualCase("walk-of-sources", WALK, NAME, 4, sources_drift_apart, learnt_by_heart, "data-drift"),
)
