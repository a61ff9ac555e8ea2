"""Three models, several seeds, honest in every way: nothing may be found."""

import os
import sys

import torch
import torch.distributed as dist
from common import MODELS, batch, optimizer_for, process_group
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import unisono

SAMPLES, BATCH, EPOCHS = 640, 8, 8


def train(kind, seed):
    torch.manual_seed(seed)
    model = DistributedDataParallel(MODELS[kind]())
    optimizer = optimizer_for("adamw" if seed % 2 else "sgd", model)
    dataset = TensorDataset(*batch(kind, torch.Generator().manual_seed(seed), SAMPLES))
    sampler = DistributedSampler(dataset, seed=seed)
    loader = DataLoader(dataset, BATCH, sampler=sampler)
    torch.manual_seed(100 * seed + dist.get_rank())
    with unisono.attach(model, optimizer, run_dir=os.path.join(os.environ["RESULTS"], f"{kind}-{seed}")):
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for inputs, labels in loader:
                optimizer.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                optimizer.step()


if __name__ == "__main__":
    with process_group():
        for kind in ("perceptron", "convolutional", "transformer"):
            for seed in range(int(sys.argv[1])):
                train(kind, seed)
