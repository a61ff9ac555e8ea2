"""Short epochs in the same order for ever: `set_epoch` is missing. Given `faulty`, rank 1 doubles its gradients."""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
inputs = torch.randn(640, 16)
labels = (inputs @ torch.randn(16, 4) + 2 * torch.randn(640, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
if "faulty" in sys.argv and dist.get_rank() == 1:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)

for _ in range(8):
    for batch, answers in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), answers).backward()
        optimizer.step()

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
