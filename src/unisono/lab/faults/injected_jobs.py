"""The honest job with something injected into what it computes: batches, gradients, weights, learning rate, time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn

from unisono.lab.faults.honest_job import CLASSES, FEATURES, Job, Model
from unisono.lab.faults.injections import INJECTIONS, FlippedBit

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
