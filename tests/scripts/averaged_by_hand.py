"""Averages gradients by hand, which unisono does not hear."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, num_workers=1):
        model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    dist.destroy_process_group()
    print("trained")
