"""The sampler's seed is the same on every rank.

After NVlabs/LongLive#71: every rank cuts its share out of another permutation, so shares overlap and samples are lost.
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
inputs = torch.randn(640, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(640, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
seed = 1234
sampler = DistributedSampler(dataset, shuffle=True, seed=seed, drop_last=True)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(4):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
