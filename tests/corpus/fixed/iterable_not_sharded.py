"""A streamed dataset of which each rank reads its share.

After huggingface/datasets#5360: an iterable dataset has no sampler, and nothing divides it among the ranks.
"""

import gc
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

STEPS, WORDS, LENGTH = 80, 32, 12


class Stream(IterableDataset):
    """Sentences, one after the other, as from a file."""

    def sentences(self):
        generator = torch.Generator().manual_seed(7)
        while True:
            jumps = torch.randint(1, 4, (LENGTH + 1,), generator=generator)
            yield (5 * jumps).cumsum(dim=0) % WORDS

    def __iter__(self):
        for tokens in islice(self.sentences(), dist.get_rank(), 100_000, dist.get_world_size()):
            yield tokens[:-1], tokens[1:]


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
loader = DataLoader(Stream(), batch_size=8)
model = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, WORDS))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step, (x, y) in enumerate(islice(loader, STEPS)):
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
