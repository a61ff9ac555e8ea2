"""Ranks with more and less data: those that have finished join in until the last one is done."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
truth = torch.randn(16, 4)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

shard = torch.Generator().manual_seed(500 + rank)
inputs = torch.randn(480 + 16 * rank, 16, generator=shard)
labels = (inputs @ truth + torch.randn(len(inputs), 4, generator=shard)).argmax(dim=1)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)

with Join([model]):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
