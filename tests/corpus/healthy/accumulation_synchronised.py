"""Gradient accumulation the simple way: every micro-batch is averaged over the ranks."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ACCUMULATE = 4

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(640, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(640, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(8):
    sampler.set_epoch(epoch)
    for index, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATE
        loss.backward()
        if (index + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    if rank == 0:
        print(f"epoch {epoch} loss {ACCUMULATE * loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
