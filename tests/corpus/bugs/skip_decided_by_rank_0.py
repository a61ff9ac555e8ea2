"""Batches with a loss far above the recent ones are skipped, as rank 0 sees it.

After ecmwf/WeatherGenerator#2724: the decision is made from rank 0's loss only. Here, as in NVIDIA-NeMo/Automodel#2468,
the others do not even hear of it: they take the step that rank 0 leaves out.
"""

import gc
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(320, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(320, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
recent, skipped = deque(maxlen=20), 0

for epoch in range(10):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        spike = len(recent) == 20 and loss.item() > 1.5 * sum(recent) / 20
        recent.append(loss.item())
        if rank == 0 and spike:
            skipped += 1
            continue
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} skipped {skipped}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
