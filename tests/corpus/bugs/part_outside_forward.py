"""A second head is called past DDP and trained by a backward pass of its own.

After moojink/openvla-oft#160 and pytorch/pytorch#69031: DDP averages only what its own forward pass has used. It would
complain about the unused head; `find_unused_parameters=True` silences it, and the head differs on every rank.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)
        self.reader = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, inputs):
        features = self.body(inputs)
        return self.head(features), features


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(320, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(320, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(8):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad(set_to_none=False)
        logits, features = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        measured = model.module.reader(features.detach())
        probe_loss = nn.functional.mse_loss(measured[:, 0], x.norm(dim=1))
        probe_loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f} probe {probe_loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
