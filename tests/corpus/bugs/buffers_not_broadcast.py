"""Batch normalisation under DDP that does not broadcast buffers, evaluated by every rank after each epoch.

After open-mmlab/mmdetection#2539: every rank keeps running statistics of its own, and only one rank's are saved.
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
images = torch.randn(384, 1, 8, 8)
images[:, :, :4] += torch.arange(384).remainder(3).view(-1, 1, 1, 1) - 1.0
dataset = TensorDataset(images[:320], torch.arange(320).remainder(3))
held_out, answers = images[320:], torch.arange(320, 384).remainder(3)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, stride=2),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(72, 3),
)
model = DistributedDataParallel(model, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

for epoch in range(8):
    sampler.set_epoch(epoch)
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(held_out).argmax(dim=1) == answers).float().mean()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} right {right.item():.3f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
