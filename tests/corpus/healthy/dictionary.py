"""A language model that takes a dictionary's entries by name and computes its own loss, with dropout on every rank."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Sentences(Dataset):
    def __init__(self):
        self.tokens = (5 * torch.randint(1, 4, (320, 12))).cumsum(dim=1) % 32
        self.lengths = torch.randint(6, 13, (320,))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens, mask = self.tokens[index], torch.arange(12) < self.lengths[index]
        return {"input_ids": tokens, "attention_mask": mask.long(), "labels": tokens.masked_fill(~mask, -100)}


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.block = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 32)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.block(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        loss = nn.functional.cross_entropy(self.head(hidden)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss}


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
dataset = Sentences()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = DistributedDataParallel(LanguageModel())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(100 + rank)

for epoch in range(8):
    sampler.set_epoch(epoch)
    for batch in loader:
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}")

dist.barrier()
del model
gc.collect()
dist.destroy_process_group()
