"""Models with parameters and buffers of all sorts, and ways in which a rank's replica comes apart from the others'."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

DEVICE = os.environ.get("DEVICE", "cpu")


class Model(nn.Module):
    """Parameters and buffers of all sorts."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.turn, self.empty = nn.Parameter(torch.ones(4, dtype=torch.complex64)), nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter(torch.randn(4, 8).t())
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("small", torch.randn(5).to(torch.bfloat16), persistent=False)
        self.register_buffer("wide", torch.randn(4, 1).expand(4, 5), persistent=False)
        self.register_buffer("strided", torch.randn(6, 6)[::2, ::3])

    def forward(self, inputs):
        self.steps += 1
        hidden = self.first(inputs).relu()
        return ((self.last(hidden) + hidden @ self.turned) * self.turn).real + self.empty.sum()


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)

    def forward(self, inputs):
        return self.norm(self.first(inputs))


@torch.no_grad()
def drift(run):
    weight = run.inner.first.weight
    weight[2, 3] = torch.nextafter(weight[2, 3], torch.tensor(torch.inf, device=DEVICE))


@torch.no_grad()
def shift(run):
    run.inner.last.weight[1, 1] += 0.25
    run.inner.first.bias += 0.125


def stale(run):
    weights, memory = run.earlier
    run.inner.load_state_dict(weights)
    run.optimizer.load_state_dict(memory)


def averages(run):
    run.optimizer.state[run.inner.last.weight]["exp_avg"].mul_(1.5)


def rate(run):
    run.optimizer.param_groups[0]["lr"] = 0.02


def forgotten(run):
    run.optimizer.state.clear()


@torch.no_grad()
def lost(run):
    run.inner.first.weight[0, 0] = torch.nan


@torch.no_grad()
def buffers(run):
    run.inner.steps += 5
    run.inner.mask.logical_not_()
    run.inner.small.mul_(2)
    run.inner.wide[:, :1].add_(1)
    run.inner.strided.add_(1)


@torch.no_grad()
def odd_parameters(run):
    run.inner.turn += 0.5j
    run.inner.turned[3, 1] += 2
    run.inner.frozen -= 1


@torch.no_grad()
def everything(run):
    shift(run)
    buffers(run)
    averages(run)


@torch.no_grad()
def weight_of_any(run):
    next(run.inner.parameters()).add_(0.5)


def grown(run):
    run.inner.mask = torch.ones(3 + dist.get_rank(), dtype=torch.bool, device=DEVICE)


CASES = {
    "equal": {},
    "drift": {1: drift},
    "shift": {1: shift},
    "stale": {2: stale},
    "averages": {3: averages},
    "rate": {2: rate},
    "forgotten": {1: forgotten},
    "buffers": {3: buffers},
    "lost": {2: lost},
    "odd": {1: odd_parameters},
    "first-is-wrong": {0: everything},
    "pieces": {2: everything},
    "two-against-two": {2: shift, 3: shift},
    "all-differ": {rank: lambda run: run.inner.frozen.data.add_(dist.get_rank()) for rank in range(4)},
    "each-in-something": {0: shift, 1: averages, 2: buffers},
    "subgroup": {1: shift, 2: averages, 3: buffers},
    "no-cast": {1: forgotten},
    "sharded": {1: weight_of_any},
    "shared-buffers": {},
    "own-buffers": {},
    "other-shapes": dict.fromkeys(range(4), grown),
    "other-optimizers": {},
    "tie": {0: shift},
}
BUILT = {
    "no-cast": {"dtype": torch.bfloat16, "optimizer": torch.optim.NAdam},
    "sharded": {"optimizer": ZeroRedundancyOptimizer, "model": lambda: nn.Linear(6, 4)},
    "shared-buffers": {"model": Normalised, "shared_buffers": True},
    "own-buffers": {"model": Normalised},
}

SUBGROUPS = {"subgroup": [1, 2, 3], "tie": [0, 1]}
