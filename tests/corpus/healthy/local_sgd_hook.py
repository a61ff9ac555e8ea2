"""Local SGD by torch's hook: after a warm-up gradients stay local, and an optimizer averages weights every 4 steps."""

import gc

import torch
import torch.distributed as dist
import torch.distributed.algorithms.model_averaging.averagers as averagers
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WARM_UP = 20

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(320, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(320, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
alone, _ = dist.new_subgroups(group_size=1)
state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=WARM_UP)
model.register_comm_hook(state, post_localSGD_hook)
optimizer = PostLocalSGDOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05), averagers.PeriodicModelAverager(period=4, warmup_steps=WARM_UP)
)

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
