"""The gradient norm is wanted for the log, so rank 0 clips and prints, and the others do neither.

After pytorch/pytorch#136009, where ranks unscale the same reduced gradients by different factors: gradients are equal
after the all-reduce, one rank then changes its own, and the replicas part.
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
inputs = torch.randn(320, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(320, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

step = 0
for epoch in range(8):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if rank == 0:
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.2)
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f} norm {norm.item():.4f}")
        optimizer.step()
        step += 1

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
