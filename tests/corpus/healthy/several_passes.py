"""PPO-like: each rank plays for itself, then goes over what it has played four times."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
truth = torch.randn(16, 4)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
torch.manual_seed(100 + rank)

for iteration in range(20):
    states = torch.randn(32, 16)
    with torch.no_grad():
        played = Categorical(logits=model(states))
        actions = played.sample()
        before = played.log_prob(actions)
        rewards = (states @ truth).gather(1, actions[:, None])[:, 0]
        advantages = rewards - rewards.mean()
    for _ in range(4):
        ratio = (Categorical(logits=model(states)).log_prob(actions) - before).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0 and iteration % 5 == 0:
        print(f"iteration {iteration} reward {rewards.mean().item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
