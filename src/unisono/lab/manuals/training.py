"""What the jobs of the manuals' cases share: something small to learn, and steps of plain training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CLASSES, FEATURES, HIDDEN = 10, 32, 64
Batch = tuple[Tensor, Tensor]
Model = Any


class Clouds:
    """Points around ten centres, more than will ever be asked for; every rank draws points of its own.

    :param reader: Whose points they are, where that is not the rank's own choice.
    :param unequal: How much further the points of the hardest class lie from their centre than those of the easiest.
    """

    def __init__(self, seed: int, distance: float = 0.6, reader: int | None = None, unequal: float = 0.0) -> None:
        self.noise_C = 1 + unequal * torch.linspace(-0.5, 0.5, CLASSES)
        self.centres = distance * torch.randn(CLASSES, FEATURES, generator=Generator().manual_seed(seed))
        self.generator = Generator().manual_seed(1_000 * seed + 1 + (dist.get_rank() if reader is None else reader))

    def batch(self, size: int) -> Batch:
        labels = self.labels(size)
        return self.around(labels), labels

    def labels(self, size: int) -> Tensor:
        return torch.randint(CLASSES, (size,), generator=self.generator)

    def around(self, labels: Tensor) -> Tensor:
        noise = torch.randn(len(labels), FEATURES, generator=self.generator)
        return self.centres[labels] + self.noise_C[labels, None] * noise


def network(seed: int, hidden: int = HIDDEN) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.GELU(), nn.Linear(hidden, CLASSES))


def wrapped(seed: int) -> Model:
    return DistributedDataParallel(network(seed))


def train(model: Model, optimizer: torch.optim.Optimizer, steps: int, batch_at: Callable[[int], Batch]) -> None:
    for step in range(steps):
        features, labels = batch_at(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
