"""Two ranks share a model, each with half of its hidden units, and read the same data; DDP averages over such pairs."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class SumOverPeers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, peers):
        total = partial.clone()
        dist.all_reduce(total, group=peers)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Half(nn.Module):
    def __init__(self, peers, half):
        super().__init__()
        torch.manual_seed(10 + half)
        self.wide = nn.Linear(16, 32)
        self.narrow = nn.Linear(32, 32, bias=False)
        torch.manual_seed(20)
        self.head = nn.Linear(32, 4)
        self.peers = peers

    def forward(self, inputs):
        partial = self.narrow(torch.relu(self.wide(inputs)))
        return self.head(torch.relu(SumOverPeers.apply(partial, self.peers)))


dist.init_process_group("gloo")
rank = dist.get_rank()
replica, half = divmod(rank, 2)
peers, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
replicas, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
torch.manual_seed(0)
inputs = torch.randn(320, 16)
labels = (inputs @ torch.randn(16, 4) + torch.randn(320, 4)).argmax(dim=1)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset, num_replicas=2, rank=replica)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
model = DistributedDataParallel(Half(peers, half), process_group=replicas)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

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
