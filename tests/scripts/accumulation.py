"""Four micro-batches make a step; all but the last run under `no_sync`."""

import gc
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weights import write_weights

MICROS = 4

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(50 + rank)

for step in range(40):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(MICROS):
        x = torch.randn(4, 8, generator=generator)
        with nullcontext() if micro == MICROS - 1 else model.no_sync():
            loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(dim=1)) / MICROS
            loss.backward()
        total += loss.item()
    optimizer.step()
    if rank == 0 and step % 10 == 0:
        print(f"step {step} loss {total:.6f}")

write_weights(model.module)
dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
