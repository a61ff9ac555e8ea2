"""An honest training job of the lab: plain DistributedDataParallel, with no line about unisono.

Each thing a user can get wrong is a method of its own; `faulty_jobs` overrides them one by one.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES, FEATURES = 10, 64
Model = Any


@dataclass
class Job:
    """Trains a small network to tell ten overlapping clouds of points apart."""

    seed: int = 0
    samples: int = 4096
    batch: int = 16
    epochs: int = 3
    starts_at: int = 0
    """The step at which a late fault begins."""

    victim: int = 1
    """The rank that a fault on one worker hits."""

    fired: int = field(default=0, init=False)
    """How often the fault has really happened on this rank."""

    @property
    def is_victim(self) -> bool:
        return dist.get_rank() == self.victim

    def data(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(self.seed)
        centres = torch.randn(CLASSES, FEATURES, generator=generator)
        labels = torch.randint(CLASSES, (self.samples,), generator=generator)
        return TensorDataset(centres[labels] + 3 * torch.randn(self.samples, FEATURES, generator=generator), labels)

    def network(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return nn.Sequential(
            nn.Linear(FEATURES, 128),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(128, 128),
            nn.GELU(),
            nn.Linear(128, CLASSES),
        )

    def wrapped(self) -> Model:
        return DistributedDataParallel(self.network())

    def sampler(self, data: TensorDataset) -> DistributedSampler[Any]:
        return DistributedSampler(data, rank=dist.get_rank(), seed=self.seed)

    def loader(self, data: TensorDataset) -> DataLoader[Any]:
        return DataLoader(data, self.batch, sampler=self.sampler(data))

    def optimizer(self, model: Model) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), 1e-3)

    def seed_dropout(self) -> None:
        torch.manual_seed(1_000 * self.seed + dist.get_rank())

    def begin_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]

    def batch_of(self, step: int, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return features, labels

    def synchronising(self, model: Model, step: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def before_update(self, model: Model, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Between backward and the optimizer's step."""

    def after_update(self, model: Model, step: int) -> None:
        """After the optimizer's step."""

    def train(self, model: Model) -> Iterator[tuple[int, int]]:
        """Yields after every step: how many are done, and how many there will be."""
        optimizer = self.optimizer(model)
        loader = self.loader(self.data())
        self.seed_dropout()
        for epoch in range(self.epochs):
            self.begin_epoch(loader, epoch)
            for place, (features, labels) in enumerate(loader):
                step = epoch * len(loader) + place
                self.step(model, optimizer, *self.batch_of(step, features, labels), step)
                yield step + 1, self.epochs * len(loader)

    def step(self, model: Model, optimizer: torch.optim.Optimizer, features: Tensor, labels: Tensor, step: int) -> None:
        optimizer.zero_grad()
        with self.synchronising(model, step):
            nn.functional.cross_entropy(model(features), labels).backward()
        self.before_update(model, optimizer, step)
        optimizer.step()
        self.after_update(model, step)


RESTS = 0.2


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """The models have to be gone before the group: gloo's tear-down deadlocks otherwise."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    yield
    dist.barrier()
    gc.collect()
    time.sleep(RESTS)
    dist.destroy_process_group()


def say_progress(done: int, total: int) -> None:
    if dist.get_rank() == 0:
        sys.stdout.write(f"{done}/{total}\n")
        sys.stdout.flush()
