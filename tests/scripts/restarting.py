"""Rank 1 gives up at step 5 of the first attempt; started again by the launcher, the second attempt ends well.

The ranks meet through a file: with the launcher's own store, gloo of torch 2.13 does not form again after a restart.
"""

import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weights import write_weights

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rendezvous = f"file://{os.path.abspath(sys.argv[1])}.{attempt}"
dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(80 + rank)

for step in range(20):
    if attempt == 0 and rank == 1 and step == 5:
        raise RuntimeError("the data of step 5 cannot be read")
    x = torch.randn(16, 8, generator=generator)
    loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"attempt {attempt} step {step} loss {loss.item():.6f}", flush=True)

write_weights(model.module)
dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
