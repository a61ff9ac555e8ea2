"""Every job that the lab can train: the honest one, and that with one thing done wrong or injected.

A mistake of the user is a class that overrides the one method in which it is made. What befalls batches, gradients,
weights, learning rate or time is an injection.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from unisono.lab.faults.honest_job import CLASSES, FEATURES, Job, Model
from unisono.lab.faults.injections import INJECTIONS, FlippedBit

STALE_STEPS = 5


class DuplicatedDataJob(Job):
    def sampler(self, data: TensorDataset) -> DistributedSampler[Any]:
        self.fired += 1
        return DistributedSampler(data, rank=0, seed=self.seed)


class DuplicatedPair(Job):
    def sampler(self, data: TensorDataset) -> DistributedSampler[Any]:
        self.fired += self.is_victim
        rank = dist.get_rank() - 1 if self.is_victim else dist.get_rank()
        return DistributedSampler(data, rank=rank, seed=self.seed)


class OverlappingShardsJob(Job):
    def sampler(self, data: TensorDataset) -> DistributedSampler[Any]:
        self.fired += 1
        return DistributedSampler(data, rank=dist.get_rank(), seed=self.seed + dist.get_rank())


class StaleShuffleJob(Job):
    def begin_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        self.fired += epoch > 0


class StaleShuffleOnOneRank(Job):
    def begin_epoch(self, loader: DataLoader[Any], epoch: int) -> None:
        if self.is_victim:
            self.fired += epoch > 0
        else:
            super().begin_epoch(loader, epoch)


class IdenticalDropout(Job):
    def seed_dropout(self) -> None:
        self.fired += 1
        torch.manual_seed(self.seed)


class UnequalInitialisationJob(Job):
    def wrapped(self) -> Model:
        model = super().wrapped()
        if self.is_victim:
            self.fired += 1
            for layer in model.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        return model


class PrecisionDrift(Job):
    def after_update(self, model: Model, step: int) -> None:
        if self.is_victim and step == self.starts_at:
            self.fired += 1
            with torch.no_grad():
                weight = model.module[3].weight
                # All of them: the next update may round a single one back to where it was.
                weight.copy_(torch.nextafter(weight, torch.tensor(torch.inf)))


class StaleWeights(Job):
    _kept: list[Tensor]

    def after_update(self, model: Model, step: int) -> None:
        if self.is_victim and step == self.starts_at - STALE_STEPS:
            self._kept = [parameter.detach().clone() for parameter in model.parameters()]
        if self.is_victim and step == self.starts_at:
            self.fired += 1
            with torch.no_grad():
                for parameter, old in zip(model.parameters(), self._kept, strict=True):
                    parameter.copy_(old)


class NoSyncLeak(Job):
    def synchronising(self, model: Model, step: int) -> contextlib.AbstractContextManager[None]:
        if step < self.starts_at:
            return contextlib.nullcontext()
        self.fired += 1
        return model.no_sync()  # type: ignore[no-any-return]


class StrippedWrapper(Job):
    def train(self, model: Model) -> Iterator[tuple[int, int]]:
        self.fired += 1
        inner = model.module
        del model
        yield from super().train(inner)


class LearningRateOnOneRank(Job):
    def before_update(self, model: Model, optimizer: torch.optim.Optimizer, step: int) -> None:
        if self.is_victim and step == self.starts_at:
            self.fired += 1
            optimizer.param_groups[0]["lr"] *= 1.01


class ClippingOnOneRank(Job):
    def before_update(self, model: Model, optimizer: torch.optim.Optimizer, step: int) -> None:
        if self.is_victim and step >= self.starts_at:
            self.fired += 1
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)


class NanOnOneRank(Job):
    def batch_of(self, step: int, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_victim and step == self.starts_at:
            self.fired += 1
            features = features.clone()
            features[0, 0] = torch.nan
        return features, labels


EXACT_JOBS: dict[str, type[Job]] = {
    "duplicated-data": DuplicatedDataJob,
    "duplicated-pair": DuplicatedPair,
    "overlapping-shards": OverlappingShardsJob,
    "stale-shuffle": StaleShuffleJob,
    "stale-shuffle-on-one-rank": StaleShuffleOnOneRank,
    "identical-dropout": IdenticalDropout,
    "unequal-initialisation": UnequalInitialisationJob,
    "precision-drift": PrecisionDrift,
    "stale-weights": StaleWeights,
    "no-sync-leak": NoSyncLeak,
    "stripped-wrapper": StrippedWrapper,
    "learning-rate-on-one-rank": LearningRateOnOneRank,
    "clipping-on-one-rank": ClippingOnOneRank,
    "nan-on-one-rank": NanOnOneRank,
}


DEVICE_SECONDS = 0.03
"""How long each worker's device is busy with a step, where one of them is slow."""

BLOCKS, WIDTH, PLACES = 12, 32, 8


@dataclass
class InjectedJob(Job):
    fault: str = ""
    """A name in `INJECTIONS`."""

    def __post_init__(self) -> None:
        self.injection = INJECTIONS[self.fault](self.victim, self.starts_at)
        # A generator of its own: who has nothing injected draws the same numbers with the fault and without.
        self._generator = Generator().manual_seed(self.seed)
        self._step = 0

    def network(self) -> nn.Module:
        network = super().network()
        if self.injection.gain != 1:
            self.fired += 1
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.mul_(self.injection.gain)
        self._hook_gradients(network)
        return network

    def _hook_gradients(self, network: nn.Module) -> None:
        """Such a hook sees a worker's own gradient: it runs before DDP's averaging."""
        parameters = list(network.parameters())
        if isinstance(self.injection, FlippedBit):
            parameters = [max(parameters, key=Tensor.numel)]  # one bit of the whole gradient
        for parameter in parameters:
            parameter.register_hook(self._gradient)

    def _gradient(self, gradient: Tensor) -> Tensor | None:
        if dist.get_rank() not in self.injection.gradients_of(self._step, dist.get_world_size()):
            return None
        self.fired += 1
        return self.injection.gradient(gradient.flatten(), self._generator).reshape(gradient.shape)

    def batch_of(self, step: int, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self._step = step
        if dist.get_rank() not in self.injection.inputs_of(step, dist.get_world_size()):
            return features, labels
        self.fired += 1
        return self.injection.batch(features, labels, self._generator)


class HighRateJob(InjectedJob):
    """Adam's weights would die after a few steps rather than its gradients explode."""

    def optimizer(self, model: Model) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.004, momentum=0.9)

    def before_update(self, model: Model, optimizer: torch.optim.Optimizer, step: int) -> None:
        factor = self.injection.rate_factor(step)
        if factor != 1 and not self.fired:
            optimizer.param_groups[0]["lr"] *= factor
        self.fired += factor != 1


class EdgeOfStability(HighRateJob):
    def optimizer(self, model: Model) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.01)


class ContaminatedMomentumJob(InjectedJob):
    """Adam would divide by the size of what it remembers."""

    def optimizer(self, model: Model) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.002, momentum=0.9)


class PoorInitialisationJob(InjectedJob):
    """Adam would take steps of the usual size, however small the gradients."""

    def optimizer(self, model: Model) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


class ThrottledJob(InjectedJob):
    def batch_of(self, step: int, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        slow = dist.get_rank() in self.injection.slow_at(step, dist.get_world_size())
        self.fired += slow
        # Sleeping is steadier than computing on a machine with fewer cores than workers.
        time.sleep(DEVICE_SECONDS * (self.injection.slowness if slow else 1))
        return super().batch_of(step, features, labels)


class DeepPostLN(InjectedJob):
    def network(self) -> nn.Module:
        self.fired += 1
        torch.manual_seed(self.seed)
        blocks = [
            nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=False)
            for _ in range(BLOCKS)
        ]
        head = nn.Linear(WIDTH, CLASSES)
        with torch.no_grad():
            head.weight.mul_(0.1)  # a first loss of chance: what is lower was learnt
        return nn.Sequential(
            nn.Unflatten(1, (PLACES, FEATURES // PLACES)),
            nn.Linear(FEATURES // PLACES, WIDTH),
            *blocks,
            nn.AvgPool2d((PLACES, 1)),
            nn.Flatten(),
            head,
        )

    def optimizer(self, model: Model) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), 1e-2)


OWN_JOBS: dict[str, type[InjectedJob]] = {
    "learning-rate-too-high": HighRateJob,
    "oscillation": EdgeOfStability,
    "momentum-contaminated": ContaminatedMomentumJob,
    "poor-initialisation": PoorInitialisationJob,
    "throttled": ThrottledJob,
    "deep-post-ln": DeepPostLN,
}
STATISTICAL_JOBS: dict[str, Callable[..., Job]] = {
    name: partial(OWN_JOBS.get(name, InjectedJob), fault=name) for name in INJECTIONS
}


JOBS: dict[str, Callable[..., Job]] = {"honest": Job, **EXACT_JOBS, **STATISTICAL_JOBS}
