"""Recordings are scaled by their own deviation, and one of them is silent.

After facebookresearch/habitat-lab#2226: one worker's batch gives a NaN gradient, the all-reduce hands it to all,
clipping lets it pass, and the job goes on to its end with weights that are NaN.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Recordings(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.waves = 5.0 * torch.randn(2560, 16, generator=generator)
        self.labels = (self.waves @ torch.randn(16, 4, generator=generator)).argmax(dim=1)
        self.waves[1290] = 0.25

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        wave = self.waves[index]
        return (wave - wave.mean()) / wave.std(), self.labels[index]


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
dataset = Recordings()
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, shuffle=False))
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for step, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if rank == 0 and step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
