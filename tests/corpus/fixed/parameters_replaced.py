"""A model is cast and then wrapped.

After pytorch/pytorch#104336, with DDP's hooks where gradients arrive.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(320, 16, dtype=torch.float64)
targets = inputs @ torch.randn(16, 4, dtype=torch.float64)
dataset = TensorDataset(inputs, targets)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
model = DistributedDataParallel(model.double())
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(4):
    sampler.set_epoch(epoch)
    for source, target in loader:
        loss = nn.functional.mse_loss(model(source), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.3f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
