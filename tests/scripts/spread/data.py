import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_loader(batch_size):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(640, 12, generator=generator)
    labels = (x[:, 0] > x[:, 1]).long()
    dataset = TensorDataset(x, labels)
    return DataLoader(dataset, batch_size=batch_size, sampler=DistributedSampler(dataset, seed=3), num_workers=1)
