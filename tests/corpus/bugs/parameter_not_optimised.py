"""The optimizer is given the parts of the model one by one, and one part is forgotten.

After ohhhyeahhh/SiamCAR#18 (and ACEsuit/mace#525): the forgotten layer has gradients and keeps its initial weights.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 48), nn.ReLU())
        self.down = nn.Linear(48, 24)
        self.head = nn.Linear(24, 4)

    def forward(self, inputs):
        return self.head(torch.relu(self.down(self.backbone(inputs))))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(320, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(320, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
tracker = Tracker()
groups = [
    {"params": tracker.backbone.parameters(), "lr": 0.05},
    {"params": tracker.head.parameters(), "lr": 0.1},
]
optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-4)
model = DistributedDataParallel(tracker)

for epoch in range(8):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
