"""The gradient norm manual's cases: vanishing, explosion, oscillation and high dispersion."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from unisono.lab.manuals.case import ManualCase
from unisono.lab.manuals.training import CLASSES, FEATURES, HIDDEN, Batch, Clouds, wrapped

Loss = Callable[[Tensor, Tensor], Tensor]


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    steps: int,
    batch_at: Callable[[int], Batch],
    loss_of: Loss = cross_entropy,
    rate_at: Callable[[int], float] | None = None,
) -> None:
    for step in range(steps):
        if rate_at is not None:
            optimizer.param_groups[0]["lr"] = rate_at(step)
        inputs, targets = batch_at(step)
        optimizer.zero_grad()
        loss_of(model(inputs), targets).backward()
        optimizer.step()


def built(seed: int, build: Callable[[], nn.Module], **wrapping: Any) -> nn.Module:
    torch.manual_seed(seed)
    return DistributedDataParallel(build(), **wrapping)


def too_small_weights(seed: int) -> None:
    """Initial weights so small that nothing gets through four layers."""
    data = Clouds(seed)

    def build() -> nn.Module:
        sizes = [FEATURES, HIDDEN, HIDDEN, HIDDEN]
        layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair, bias=False), nn.ReLU())]
        network = nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES, bias=False))
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=1e-3)
        return network

    model = built(seed, build)
    fit(model, SGD(model.parameters(), 0.05, momentum=0.9), 300, lambda step: data.batch(16))


def small_units(seed: int) -> None:
    """The loss is a millionth of what it usually is, and so is its gradient; Adam does not mind."""
    data, model = Clouds(seed), wrapped(seed)
    optimizer = AdamW(model.parameters(), 3e-3, eps=1e-16)
    fit(model, optimizer, 300, lambda step: data.batch(16), lambda scores, labels: 1e-6 * cross_entropy(scores, labels))


def saturated_at_once(seed: int) -> None:
    """At step 40 the biases get a learning rate of another unit: all outputs saturate, and nothing gets through."""
    data = Clouds(seed)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CLASSES), nn.Sigmoid())

    model = built(seed, build)
    biases = [one for name, one in model.named_parameters() if name.endswith("bias")]
    weights = [one for name, one in model.named_parameters() if not name.endswith("bias")]
    optimizer = SGD([{"params": weights}, {"params": biases}], 0.05)

    def batch_at(step: int) -> Batch:
        optimizer.param_groups[1]["lr"] = 0.05 if step < 40 else 1e3
        features, labels = data.batch(16)
        return features, nn.functional.one_hot(labels, CLASSES).float()

    fit(model, optimizer, 740, batch_at, mse_loss)


def converged(seed: int) -> None:
    """Least squares on a shard that each rank reads as a whole: the gradient of the mean goes to zero, the loss not."""
    generator = Generator().manual_seed(1_000 * seed + dist.get_rank())
    inputs = torch.randn(256, FEATURES, generator=generator)
    targets = inputs[:, :1] - inputs[:, 1:2] + 0.7 * torch.randn(256, 1, generator=generator)
    model = built(seed, lambda: nn.Linear(FEATURES, 1))
    fit(model, SGD(model.parameters(), 0.2), 740, lambda step: (inputs, targets), mse_loss)


class WideAndDeep(nn.Module):
    """A straight path beside a deep one of sigmoids."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        sizes = [FEATURES] + depth * [HIDDEN]
        for place, pair in enumerate(pairwise(sizes)):
            self.add_module(f"deep{place}", nn.Linear(*pair))
        self.depth, self.head, self.wide = depth, nn.Linear(HIDDEN, CLASSES), nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for place in range(self.depth):
            hidden = torch.sigmoid(self.get_submodule(f"deep{place}")(hidden))
        return torch.add(self.head(hidden), self.wide(inputs))


def deep_sigmoids(seed: int) -> None:
    """The straight path learns; the first of the deep layers hear next to nothing."""
    data = Clouds(seed)
    model = built(seed, lambda: WideAndDeep(8))
    fit(model, SGD(model.parameters(), 0.05, momentum=0.9), 300, lambda step: data.batch(16))


class PartlyUsed(nn.Module):
    """A large table of which few rows are looked up, a frozen layer, and one that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20_000, 8)
        self.frozen, self.unused = nn.Linear(FEATURES, FEATURES), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.hidden, self.head = nn.Linear(FEATURES + 8, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        nn.init.normal_(self.table.weight, std=1e-3)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = self.table((inputs[:, 0].abs() * 1e6).long() % 20_000)
        hidden = torch.relu(self.hidden(torch.cat([self.frozen(inputs), rows], 1)))
        return torch.as_tensor(self.head(hidden))


def partly_used(seed: int) -> None:
    data = Clouds(seed)
    model = built(seed, PartlyUsed, find_unused_parameters=True)
    fit(model, AdamW(filter(lambda one: one.requires_grad, model.parameters()), 3e-3), 300, lambda step: data.batch(16))


def one_class(seed: int) -> None:
    """A head of one class: cross entropy and its gradient are exactly zero, whatever the weights."""
    data = Clouds(seed)
    model = built(seed, lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)))

    def batch_at(step: int) -> Batch:
        features, labels = data.batch(16)
        return features, torch.zeros_like(labels)

    fit(model, AdamW(model.parameters(), 3e-3), 150, batch_at)


def all_margins_met(seed: int) -> None:
    """Hinge loss on classes far apart: loss and gradient become exactly zero when all is learnt."""
    data, model = Clouds(seed, distance=4.0), wrapped(seed)
    margin = nn.MultiMarginLoss()
    fit(model, AdamW(model.parameters(), 3e-3), 300, lambda step: data.batch(16), margin)


def rectified_output(seed: int) -> None:
    """A rectifier behind the last layer, and targets below zero: soon no output is above it, and none ever will be."""
    generator = Generator().manual_seed(1_000 * seed + dist.get_rank())

    def batch_at(step: int) -> Batch:
        inputs = torch.randn(16, FEATURES, generator=generator)
        return inputs, inputs[:, :1] - 2.0

    model = built(seed, lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1), nn.ReLU()))
    fit(model, AdamW(model.parameters(), 1e-2), 740, batch_at, mse_loss)


def warm_up_from_zero(seed: int) -> None:
    """For 150 steps the learning rate rises from nothing, and the loss stays where it began."""
    data, model = Clouds(seed), wrapped(seed)
    optimizer = SGD(model.parameters(), 0.1)

    def rate_at(step: int) -> float:
        return 0.0 if step < 120 else min(0.1, 1e-4 * (step - 120))

    fit(model, optimizer, 400, lambda step: data.batch(16), rate_at=rate_at)


def rate_times_60(seed: int) -> None:
    data, model = Clouds(seed), wrapped(seed)
    optimizer = AdamW(model.parameters(), 1e-3)
    fit(model, optimizer, 600, lambda step: data.batch(16), rate_at=lambda step: 1e-3 if step < 300 else 0.06)


def warm_restart(seed: int) -> None:
    """The learning rate falls along half a cosine and begins again, as it is meant to."""
    data, model = Clouds(seed), wrapped(seed)
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)

    def rate_at(step: int) -> float:
        return 1e-3 + 0.1 * (0.5 + 0.5 * math.cos(math.pi * (step % 300) / 300))

    fit(model, optimizer, 700, lambda step: data.batch(16), rate_at=rate_at)


class NoisyLine:
    """A linear function with noise; every rank draws points of its own."""

    def __init__(self, seed: int) -> None:
        self._slopes = 0.3 * torch.randn(FEATURES, 1, generator=Generator().manual_seed(seed))
        self._generator = Generator().manual_seed(1_000 * seed + dist.get_rank() + 1)

    def batch(self, size: int) -> Batch:
        inputs = torch.randn(size, FEATURES, generator=self._generator)
        return inputs, inputs @ self._slopes + 0.28 * torch.randn(size, 1, generator=self._generator)


def regression(seed: int) -> nn.Module:
    return built(seed, lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1)))


def past_the_edge(seed: int) -> None:
    """Adam with large batches, and a learning rate that rises until the steps jump across the valley."""
    data, model = NoisyLine(seed), regression(seed)
    optimizer = AdamW(model.parameters(), 3e-3)
    fit(model, optimizer, 900, lambda step: data.batch(256), mse_loss, lambda step: 3e-3 * 1.0053**step)


def cyclic_rates(seed: int) -> None:
    """The learning rate goes up and down between a thousandth and three hundredths, as it is meant to."""
    data, model = NoisyLine(seed), regression(seed)
    optimizer = AdamW(model.parameters(), 1e-3)

    def rate_at(step: int) -> float:
        return 1e-3 + 0.029 * abs((step / 100) % 2 - 1)

    fit(model, optimizer, 800, lambda step: data.batch(128), mse_loss, rate_at)


def batches_of_one(seed: int) -> None:
    """One sample on each worker, and a learning rate for larger batches: the loss does not get anywhere."""
    data, model = Clouds(seed), wrapped(seed)
    fit(model, SGD(model.parameters(), 0.1), 1200, lambda step: data.batch(1))


def easy_and_hard(seed: int) -> None:
    """Easy and hard batches in turn, for all workers; the loss falls."""
    data, model = Clouds(seed), wrapped(seed)

    def batch_at(step: int) -> Batch:
        features, labels = data.batch(4)
        return (features if step % 2 else 3 * data.centres[labels] + 0.1 * features), labels

    fit(model, AdamW(model.parameters(), 1e-3), 900, batch_at)


def half_unnormalised(seed: int) -> None:
    """The ranks of the second node do not normalise their inputs, from the first step on."""
    data, model = Clouds(seed), wrapped(seed)
    factor = 1.0 if dist.get_rank() < dist.get_world_size() / 2 else 3.0

    def batch_at(step: int) -> Batch:
        features, labels = data.batch(16)
        return factor * features, labels

    fit(model, AdamW(model.parameters(), 1e-3), 200, batch_at)


def rare_large_samples(seed: int) -> None:
    """Small batches in which one sample in twenty is six times as large as the others; each tenth batch is short."""
    data, model = Clouds(seed), wrapped(seed)

    def batch_at(step: int) -> Batch:
        features, labels = data.batch(4 if step % 10 else 3)
        rare = torch.rand(len(labels), generator=data.generator) < 0.05
        return features * (1 + 5 * rare.float())[:, None], labels

    fit(model, AdamW(model.parameters(), 1e-3), 300, batch_at)


VANISHING, EXPLOSION, OSCILLATION = "Gradient Vanishing", "Gradient Explosion", "Persistent Oscillation"
RATE, SPIKE, NEAR_ZERO = "learning-rate", "explosion", "vanishing"
CASES = (
    ManualCase(
        "vanishing-from-the-start",
        "UN402",
        VANISHING,
        2,
        too_small_weights,
        small_units,
        "initialisation",
        threshold=NEAR_ZERO,
    ),
    ManualCase(
        "vanishing-after-learning",
        "UN402",
        VANISHING,
        2,
        saturated_at_once,
        converged,
        "dead-layers",
        threshold=NEAR_ZERO,
    ),
    ManualCase(
        "vanishing-in-one-layer", "UN402", VANISHING, 2, deep_sigmoids, partly_used, "architecture", threshold=NEAR_ZERO
    ),
    ManualCase(
        "vanishing-nothing-to-learn",
        "UN402",
        VANISHING,
        2,
        one_class,
        all_margins_met,
        "constant-loss",
        threshold=NEAR_ZERO,
    ),
    ManualCase(
        "vanishing-exactly-zero",
        "UN402",
        VANISHING,
        2,
        rectified_output,
        warm_up_from_zero,
        "dead-layers",
        threshold=NEAR_ZERO,
    ),
    ManualCase("explosion-by-learning-rate", "UN401", EXPLOSION, 2, rate_times_60, warm_restart, RATE, threshold=SPIKE),
    ManualCase("oscillation-at-the-edge", "UN403", OSCILLATION, 2, past_the_edge, cyclic_rates, RATE),
    ManualCase(
        "oscillation-by-small-batches",
        "UN403",
        OSCILLATION,
        2,
        batches_of_one,
        easy_and_hard,
        "small-batch",
        severity="info",
    ),
    ManualCase(
        "dispersion-from-the-start",
        "UN411",
        "High Dispersion",
        4,
        half_unnormalised,
        rare_large_samples,
        "ranks-set-up-differently",
        threshold="high dispersion",
    ),
)
