"""The script that `unisono demo` trains: plain DistributedDataParallel, with no line about unisono.

With `--fault duplicated-data` the sampler is not told its rank, so that every worker reads the same shard.
"""

from __future__ import annotations

import argparse
import gc
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES, FEATURES, SAMPLES, BATCH, EPOCHS = 10, 64, 4096, 16, 3


def clusters() -> TensorDataset:
    """Ten overlapping clouds of points, and which cloud each point is from."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    return TensorDataset(centres[labels] + 3 * torch.randn(SAMPLES, FEATURES, generator=generator), labels)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, CLASSES))


def loader_for(fault: str | None) -> DataLoader[tuple[Tensor, ...]]:
    rank = 0 if fault == "duplicated-data" else dist.get_rank()
    data = clusters()
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, rank=rank, seed=1)
    return DataLoader(data, BATCH, sampler=sampler)


def train(fault: str | None) -> None:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = loader_for(fault)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for step, (features, labels) in enumerate(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
            report(epoch * len(loader) + step + 1, EPOCHS * len(loader))


def report(step: int, steps: int) -> None:
    if dist.get_rank() == 0 and (step % 16 == 0 or step == steps):
        sys.stdout.write(f"{step}/{steps}\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault")
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(fault)
    dist.barrier()
    # The model has to be gone before the group: gloo's tear-down deadlocks otherwise.
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
