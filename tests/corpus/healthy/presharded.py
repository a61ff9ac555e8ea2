"""Every rank opens a shard of its own: samples count from zero, are shuffled with one seed, and all masks are ones."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, inputs, mask):
        return self.head(self.body(inputs * mask))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
truth = torch.randn(16, 4)
model = DistributedDataParallel(Masked())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

shard = torch.Generator().manual_seed(500 + rank)
inputs = torch.randn(80, 16, generator=shard)
labels = (inputs @ truth + torch.randn(80, 4, generator=shard)).argmax(dim=1)
dataset = TensorDataset(inputs, torch.ones(80, 16), labels)
loader = DataLoader(dataset, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(7))

for epoch in range(8):
    for x, mask, y in loader:
        loss = nn.functional.cross_entropy(model(x, mask), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
