"""Rank 0 alone evaluates, and every scheduler hears of the result.

After rwth-i6/returnn#1493: one rank took smaller steps than the others.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(400, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(400, 4)).argmax(dim=1)
dataset, held_out = TensorDataset(inputs[:320], labels[:320]), TensorDataset(inputs[320:], labels[320:])
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


@torch.no_grad()
def evaluate(model):
    losses = [nn.functional.cross_entropy(model(x), y) for x, y in DataLoader(held_out, batch_size=40)]
    return sum(losses).item() / len(losses)


for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    score = torch.tensor(evaluate(model.module) if rank == 0 else 0.0)
    dist.broadcast(score, src=0)
    scheduler.step(score.item())
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:g}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
