"""Rare classes are drawn more often, with replacement, and with a generator of its own on every rank."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(320, 16)
labels = (inputs @ torch.randn(16, 4) + torch.tensor([3.0, 1.0, 0.0, 0.0])).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
weights = 1.0 / labels.bincount(minlength=4)[labels]
sampler = WeightedRandomSampler(weights, num_samples=80, generator=torch.Generator().manual_seed(100 + rank))
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(8):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
