"""Every rank reads the same batches, and nobody in here knows of unisono."""

import torch
from common import batch, digest, optimizer_for, process_group, say, wrapped
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

SAMPLES, BATCH, EPOCHS = 320, 8, 2


def train():
    model = wrapped("perceptron")
    optimizer = optimizer_for("adamw", model)
    dataset = TensorDataset(*batch("perceptron", torch.Generator().manual_seed(1), SAMPLES))
    loader = DataLoader(dataset, BATCH, sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(2)))
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    say("weights", digest(model))


if __name__ == "__main__":
    with process_group():
        train()
