"""Trains on few samples with wrong labels, or on many with right ones, and validates after every epoch.

`validated.py noisy|clean RUN_DIR`. Each rank validates on data of its own, so that their numbers differ.
"""

import sys

import torch
import torch.distributed as dist
from common import process_group, say
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import unisono

CLASSES, FEATURES, BATCH, EPOCHS = 10, 32, 32, 30
SAMPLES = {"noisy": 768, "clean": 3_072}
WRONG = {"noisy": 0.5, "clean": 0.0}


def samples(count, seed, wrong=0.0):
    """Labels are what a fixed random network says, but for a share of wrong ones."""
    generator, teacher = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(0)
    inputs = torch.randn(count, FEATURES, generator=generator)
    labels = (inputs @ torch.randn(FEATURES, CLASSES, generator=teacher)).argmax(1)
    drawn = torch.randint(0, CLASSES, (count,), generator=generator)
    return inputs, torch.where(torch.rand(count, generator=generator) < wrong, drawn, labels)


@torch.no_grad()
def accuracy(model, inputs, labels):
    model.eval()
    share = (model.module(inputs).argmax(1) == labels).float().mean()
    model.train()
    return share


def train(kind, run_dir):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, CLASSES)))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    dataset = TensorDataset(*samples(SAMPLES[kind], 1, WRONG[kind]))
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, BATCH, sampler=sampler, drop_last=True)
    monitor = unisono.attach(model, optimizer, run_dir=run_dir)
    held_out, given = samples(1_024, 2 + dist.get_rank()), []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        share = accuracy(model, *held_out)
        monitor.record_validation(share)
        given.append(share.item())
    monitor.close()
    say("given", given)


if __name__ == "__main__":
    with process_group():
        train(*sys.argv[1:])
