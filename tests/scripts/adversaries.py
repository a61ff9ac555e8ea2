"""Two wrapped models with an optimizer each, trained against each other in one process."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from weights import write_weights

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
maker = DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
judge = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(), nn.Linear(16, 1)))
maker_optimizer = torch.optim.Adam(maker.parameters(), lr=0.002, betas=(0.5, 0.9))
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=0.002, betas=(0.5, 0.9))
generator = torch.Generator().manual_seed(20 + rank)
true, false = torch.ones(16, 1), torch.zeros(16, 1)

for step in range(40):
    real = torch.randn(16, 2, generator=generator) + torch.tensor([2.0, -1.0])
    noise = torch.randn(16, 4, generator=generator)

    made = maker(noise)
    judge_optimizer.zero_grad()
    judge_loss = binary_cross_entropy_with_logits(judge(torch.cat([real, made.detach()])), torch.cat([true, false]))
    judge_loss.backward()
    judge_optimizer.step()

    maker_optimizer.zero_grad()
    judge.requires_grad_(False)
    maker_loss = binary_cross_entropy_with_logits(judge.module(made), true)
    maker_loss.backward()
    judge.requires_grad_(True)
    maker_optimizer.step()
    if rank == 0 and step % 10 == 0:
        print(f"step {step} judge {judge_loss.item():.6f} maker {maker_loss.item():.6f}")

write_weights(maker.module, judge.module)
dist.barrier()
del maker, judge
gc.collect()
dist.destroy_process_group()
