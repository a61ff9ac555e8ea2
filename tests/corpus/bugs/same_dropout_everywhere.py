"""One seed for everything on every rank, in a model with dropout.

After huggingface/transformers#31412: the data is divided well, but all ranks drop the same units at every step.
"""

import gc
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.block = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)).mean(dim=1))


dist.init_process_group("gloo")
rank = dist.get_rank()
set_seed(40)
tokens = torch.randint(32, (320, 12))
dataset = TensorDataset(tokens, (tokens // 8).mode(dim=1).values)
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(Classifier())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

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
