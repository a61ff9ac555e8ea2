"""Gradient accumulation under `no_sync`, counted from the wrong end.

After modelscope/FunASR#3472: the first micro-batch of a step is synchronised, and the one before the optimizer is not.
"""

import gc
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, ACCUMULATE = 6, 4

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(1280, 16)
targets = torch.tanh(inputs @ torch.randn(16, 4)) + 0.3 * torch.randn(1280, 4)
dataset = TensorDataset(inputs, targets)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for index, (x, y) in enumerate(loader):
        with nullcontext() if index % ACCUMULATE == 0 else model.no_sync():
            loss = nn.functional.mse_loss(model(x), y) / ACCUMULATE
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
