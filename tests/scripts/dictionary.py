"""The model computes its own loss and returns it in a dictionary; with clipping and a learning rate schedule."""

import gc
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weights import write_weights


class Output(OrderedDict):
    """Fields by key and by attribute."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class LanguageModel(nn.Module):
    def __init__(self, words=32, width=16):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.block = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids, labels):
        logits = self.head(self.block(self.embedding(input_ids)))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(loss=loss, logits=logits)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(LanguageModel())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
torch.manual_seed(60 + rank)

for step in range(40):
    input_ids = torch.randint(32, (4, 12)).cumsum(dim=1) % 32
    outputs = model(input_ids=input_ids, labels=input_ids)
    outputs.loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    if rank == 0 and step % 10 == 0:
        print(f"step {step} loss {outputs['loss'].item():.6f} norm {norm.item():.5f} lr {scheduler.get_last_lr()[0]:g}")

write_weights(model.module)
dist.barrier()
del model, outputs
gc.collect()
dist.destroy_process_group()
