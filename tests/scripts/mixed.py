"""Autocast and a loss scaler that starts too high, so that the first steps are skipped."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weights import write_weights

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
generator = torch.Generator().manual_seed(30 + rank)
skipped = 0

for step in range(40):
    x = torch.randn(16, 8, generator=generator)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = 4 * nn.functional.cross_entropy(model(x).float(), x[:, :4].argmax(dim=1))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    if rank == 0 and step % 10 == 0:
        print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():g} skipped {skipped}")

write_weights(model.module)
dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
