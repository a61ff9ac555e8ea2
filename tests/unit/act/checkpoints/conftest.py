"""A small worker to take checkpoints of."""

import pytest
import torch
from torch import nn

from unisono.act.checkpoints import Subject


class Counter:
    """Stands for a sampler: it knows its place."""

    def __init__(self):
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Worker:
    """Its batches come from torch's random stream, its model draws for dropout and counts in buffers."""

    def __init__(self, make=torch.optim.AdamW, dtype=torch.float32, width=6, seed=0):
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 2, bias=False)
        )
        self.model.to(dtype)
        self.model.register_buffer("passing", torch.zeros(3), persistent=False)
        self.optimizer = make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 5, 5])
        self.sampler = Counter()
        self.dtype = dtype
        self.subject = Subject(self.model, [self.optimizer], [self.scheduler, self.sampler])

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4).to(self.dtype)).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.sampler.place += 8
            self.model.passing += 1

    def everything(self):
        """Bit for bit, in a form that `==` compares."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                tensors += [value for _, value in sorted(self.optimizer.state[parameter].items())]
        options = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        return [_bits(tensor) for tensor in tensors], repr(options), self.sampler.place, self.scheduler.state_dict()


def _bits(value):
    if not isinstance(value, torch.Tensor):
        return value
    return str(value.dtype), value.detach().contiguous().view(torch.uint8).tolist() if value.dim() else value.item()


@pytest.fixture
def worker():
    return Worker


@pytest.fixture(autouse=True)
def own_random_stream():
    with torch.random.fork_rng(devices=[]):
        yield
