"""The honest job with one thing done wrong: each class overrides the one method in which the user went astray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from unisono.lab.faults.honest_job import Job, Model

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
