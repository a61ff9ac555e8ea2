"""Small language model with gradient accumulation: DDP is told whether to synchronise after the forward pass.

After karpathy/build-nanogpt#30: DDP decides in forward, so the last micro-batch of a step is never synchronised.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, MICROS, BATCH, LENGTH, WORDS = 60, 4, 4, 16, 32


class Tokens:
    """Every rank reads its own pieces of one stream."""

    def __init__(self, rank, world):
        jumps = torch.randint(1, 4, (65536,), generator=torch.Generator().manual_seed(1))
        self.stream = (5 * jumps).cumsum(dim=0) % WORDS
        self.position, self.stride = BATCH * LENGTH * rank, BATCH * LENGTH * world

    def next_batch(self):
        piece = self.stream[self.position : self.position + BATCH * LENGTH + 1]
        self.position += self.stride
        return piece[:-1].view(BATCH, LENGTH), piece[1:].view(BATCH, LENGTH)


dist.init_process_group("gloo")
rank = dist.get_rank()
tokens = Tokens(rank, dist.get_world_size())
torch.manual_seed(1337)
model = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, WORDS))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step in range(STEPS):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(MICROS):
        x, y = tokens.next_batch()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()) / MICROS
        total += loss.item()
        model.require_backward_grad_sync = micro == MICROS - 1
        loss.backward()
    optimizer.step()
    if rank == 0 and step % 20 == 0:
        print(f"step {step} loss {total:.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
