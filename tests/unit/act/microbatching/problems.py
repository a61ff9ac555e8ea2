"""Models, micro-batches and gradients to try virtual workers on. W = micro-batches, N = numbers in a gradient."""

import torch
from torch import nn

import unisono


class Vector(nn.Module):
    """Its gradient is what it is called with."""

    def __init__(self, elements=24, dtype=torch.float32):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(elements - 5, dtype=dtype))
        self.second = nn.Parameter(torch.zeros(5, dtype=dtype))

    def forward(self, gradient_N):
        gradient_N = gradient_N.to(self.first.dtype)
        return (self.first * gradient_N[:-5]).sum() + (self.second * gradient_N[-5:]).sum()

    def grad(self):
        return torch.cat([self.first.grad, self.second.grad]).float()


def network(batch_norm=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16) if batch_norm else nn.Tanh(), nn.Linear(16, 3))


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 10, 6, generator=generator)
    return list(zip(inputs, torch.randint(3, (count, 10), generator=generator), strict=True))


def loss_of(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def run(workers, model, micros):
    for micro in micros:
        with workers.microbatch():
            loss_of(model, micro).backward()
    return workers.reduce()


def run_vectors(gradient_WN, weighting, dtype=torch.float32):
    model = Vector(gradient_WN.shape[1], dtype)
    workers = unisono.microbatches(model, weighting=weighting)
    for gradient_N in gradient_WN:
        with workers.microbatch():
            model(torch.as_tensor(gradient_N)).backward()
    return workers.reduce(), model, workers


def equal(one, other):
    return all(torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in one)
