"""A compiled model, wrapped before (`outside`) or after (`inside`) it was compiled."""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weights import write_weights

order = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
if order == "inside":
    model = DistributedDataParallel(torch.compile(plain, backend="inductor"))
else:
    model = torch.compile(DistributedDataParallel(plain), backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(40 + rank)

for step in range(40):
    x = torch.randn(16, 8, generator=generator)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(dim=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 10 == 0:
        print(f"{order} step {step} loss {loss.item():.6f}")

write_weights(plain)
dist.barrier()
del model
torch.compiler.reset()
gc.collect()
dist.destroy_process_group()
