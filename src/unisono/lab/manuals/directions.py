"""The direction consistency manual's cases."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Generator

from unisono.lab.manuals.case import ManualCase
from unisono.lab.manuals.training import CLASSES, Batch, Clouds, train, wrapped


def _train(seed: int, steps: int, batch_at: Callable[[Clouds, int], Batch], rate: float, distance: float = 0.6) -> None:
    data, model = Clouds(seed, distance), wrapped(seed)
    train(model, torch.optim.AdamW(model.parameters(), rate), steps, lambda step: batch_at(data, step))


def sorted_at_once(seed: int) -> None:
    """From step 70 on nothing is shuffled any more: every batch holds one class, another one on every worker."""

    def batch_at(data: Clouds, step: int) -> Batch:
        labels = data.labels(128)
        labels = labels if step < 70 else labels[:1].expand(128)
        return data.around(labels), labels

    _train(seed, 130, batch_at, 1e-3)


def early_fall(seed: int) -> None:
    """A warm-up: the model begins to learn late, and quickly; its gradients then agree less and less."""
    data, model = Clouds(seed), wrapped(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, ((step + 1) / 100) ** 2))

    def batch_at(step: int) -> Batch:
        if step:
            warm_up.step()
        return data.batch(128)

    train(model, optimizer, 200, batch_at)


def conflicting_labels(seed: int) -> None:
    """Every worker has a label map of its own: what one learns the others unlearn."""

    def batch_at(data: Clouds, step: int) -> Batch:
        features, labels = data.batch(64)
        return features, (labels + dist.get_rank()) % CLASSES

    _train(seed, 300, batch_at, 3e-3)


def small_batches(seed: int) -> None:
    """Two samples a worker: the gradients are mostly noise, and agree in nothing that lasts."""
    _train(seed, 600, lambda data, step: data.batch(2), 1e-3, distance=0.3)


def labels_part_slowly(seed: int) -> None:
    """The workers' label maps become less and less alike; at this learning rate nothing is learnt."""

    def batch_at(data: Clouds, step: int) -> Batch:
        features, labels = data.batch(64)
        own = torch.rand(64, generator=data.generator) < step / 3000
        return features, torch.where(own, (labels + 1 + dist.get_rank()) % CLASSES, labels)

    _train(seed, 3000, batch_at, 1e-7)


def slow_learning(seed: int) -> None:
    """The cosine falls all the time, and so does the loss."""
    _train(seed, 1800, lambda data, step: data.batch(64), 1e-4)


def weights_drift(seed: int) -> None:
    """From step 20 on each replica rounds its weights in a way of its own."""
    data, model, own = Clouds(seed), wrapped(seed), Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def batch_at(step: int) -> Batch:
        with torch.no_grad():
            for weights in model.parameters() if step >= 20 else ():
                weights.mul_(1 + 2**-20 * torch.randint(-1, 2, weights.shape, generator=own))
        return data.batch(16)

    train(model, optimizer, 60, batch_at)


def half_precision(seed: int) -> None:
    """The same in bfloat16, rounded alike on all workers."""
    data, model = Clouds(seed), wrapped(seed)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        train(model, optimizer, 60, lambda step: data.batch(16))


DECLINE = "Gradual Divergence (direction)"
CASES = (
    ManualCase("sudden-drop", "UN406", "Sudden Drop", 4, sorted_at_once, early_fall, "data-changed"),
    ManualCase(
        "fighting-workers",
        "UN405",
        "Persistently Low",
        4,
        conflicting_labels,
        small_batches,
        "conflicting-data",
        severity="info",
    ),
    ManualCase("direction-divergence", "UN407", DECLINE, 4, labels_part_slowly, slow_learning, severity="info"),
    ManualCase("precision-drift", "UN301", "Gradual Divergence", 4, weights_drift, half_precision),
)
