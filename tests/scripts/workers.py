"""A loader with worker processes and augmentation, evaluation inside the loop, dropout."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from weights import write_weights


class Noisy(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(200, 8, generator=generator)
        self.labels = self.inputs[:, :4].argmax(dim=1)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index] + 0.1 * torch.randn(8), "labels": self.labels[index]}


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
training, held_out = Subset(Noisy(), range(160)), Subset(Noisy(), range(160, 200))
sampler = DistributedSampler(training, seed=3)
loader = DataLoader(training, batch_size=8, sampler=sampler, num_workers=2, persistent_workers=True)
evaluation = DataLoader(held_out, batch_size=20)
torch.manual_seed(10 + rank)

for epoch in range(4):
    sampler.set_epoch(epoch)
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(batch["inputs"]).argmax(dim=1) == batch["labels"]).sum().item() for batch in evaluation)
    if rank == 0:
        print(f"epoch {epoch} right {right}")

write_weights(model.module)
dist.barrier()
del model, loader, evaluation
gc.collect()
dist.destroy_process_group()
