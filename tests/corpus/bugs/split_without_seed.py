"""Each rank splits off its validation data by random numbers of its own, and a DistributedSampler divides the rest.

After TensorAuto/OpenTau#498: positions are disjoint, samples are not.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
inputs = torch.randn(800, 16)
dataset = TensorDataset(inputs, inputs @ torch.randn(16, 4))
torch.manual_seed(1_000 + rank)
training, validation = random_split(dataset, [640, 160])
sampler = DistributedSampler(training)
loader = DataLoader(training, batch_size=16, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

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
