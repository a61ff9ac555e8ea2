"""A policy is wrapped, unwrapped to get at its methods, and trained through the wrapper.

After jingyaogong/minimind#853: the forward pass goes past DDP, so no gradient is ever averaged.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 4)

    def forward(self, states):
        return self.head(self.body(states))

    @torch.no_grad()
    def act(self, states):
        return self(states).argmax(dim=1)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
states = torch.randn(320, 16)
rewards = states @ torch.randn(16, 4) + 0.5 * torch.randn(320, 4)
dataset = TensorDataset(states, rewards)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(Policy())
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(8):
    sampler.set_epoch(epoch)
    for state, reward in loader:
        policy = model.module if isinstance(model, DistributedDataParallel) else model
        advantage = reward - reward.gather(1, policy.act(state)[:, None])
        loss = -(torch.softmax(model(state), dim=1) * advantage).sum(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} reward {reward.gather(1, policy.act(state)[:, None]).mean().item():.3f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
