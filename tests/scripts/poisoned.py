"""A loss that is not finite on rank 1, at five steps apart from each other."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(12):
    inputs = torch.randn(8, 4)
    if step in (2, 4, 6, 8, 10) and dist.get_rank() == 1:
        inputs[0, 0] = torch.nan
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
print("finite" if all(parameter.isfinite().all() for parameter in model.parameters()) else "lost", flush=True)
dist.destroy_process_group()
