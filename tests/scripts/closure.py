"""Forward and backward happen inside `optimizer.step(closure)`."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weights import write_weights


def train(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)

    for step in range(40):
        x = torch.randn(16, 8, generator=generator)
        y = x.sum(dim=1, keepdim=True)

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)  # noqa: B023
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}")

    write_weights(model.module)
    dist.barrier()


dist.init_process_group("gloo")
train(dist.get_rank())
gc.collect()
dist.destroy_process_group()
