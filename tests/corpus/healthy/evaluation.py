"""Every 10 steps each rank goes through the whole validation set, in the middle of an epoch."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum(int((model(x).argmax(dim=1) == y).sum()) for x, y in loader)
    model.train()
    return right / len(loader.dataset)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(480, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(480, 4)).argmax(dim=1)
dataset, held_out = TensorDataset(inputs[:400], labels[:400]), TensorDataset(inputs[400:], labels[400:])
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
held_out_loader = DataLoader(held_out, batch_size=16)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step = 0

for epoch in range(6):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            right = evaluate(model, held_out_loader)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} right {right:.3f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
