"""The same module is wrapped anew for every other step, and always trained through its newest wrapper."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
truth = torch.randn(16, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
torch.manual_seed(100 + rank)
for step in range(40):
    if step % 2 == 0:
        model = DistributedDataParallel(net)
    inputs = torch.randn(8, 16)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs @ truth).backward()
    optimizer.step()

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
