"""Three tiny models, trained honestly for as many steps as asked for, with unisono listening to each one."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import unisono
from unisono.lab.faults.honest_job import CLASSES, FEATURES, Job, Model, process_group, say_progress

LONGEST = 5000
"""Steps of one run."""

BATCH, STEPS_PER_EPOCH = 4, 500
SIDE, WIDTH = 8, 8


class Healthy(Job):
    """Every other seed trains with plain gradient descent and momentum."""

    def optimizer(self, model: Model) -> torch.optim.Optimizer:
        if self.seed % 2:
            return torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        return super().optimizer(model)


class Perceptron(Healthy):
    def network(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, CLASSES))


class Convolutional(Healthy):
    def network(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return nn.Sequential(
            nn.Unflatten(1, (1, SIDE, SIDE)),
            nn.Conv2d(1, WIDTH, 3, stride=2, padding=1),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(WIDTH * (SIDE // 2) ** 2, CLASSES),
        )


class Attention(Healthy):
    def network(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return nn.Sequential(
            nn.Unflatten(1, (SIDE, FEATURES // SIDE)),
            nn.TransformerEncoderLayer(FEATURES // SIDE, 2, 16, dropout=0.1, batch_first=True, norm_first=True),
            nn.Flatten(),
            nn.Linear(FEATURES, CLASSES),
        )


MODELS = (Perceptron, Convolutional, Attention)


def train(run: int, steps: int, folder: Path) -> None:
    """One run, which may be stopped in the middle of an epoch."""
    kind = MODELS[run % len(MODELS)]
    samples = BATCH * STEPS_PER_EPOCH * dist.get_world_size()
    job = kind(seed=run // len(MODELS), samples=samples, batch=BATCH, epochs=-(-steps // STEPS_PER_EPOCH))
    model = job.wrapped()
    with unisono.attach(model, run_dir=folder / f"{kind.__name__.lower()}-{job.seed}"):
        for step, _ in job.train(model):
            if step == steps:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("first", type=int, help="number of the first run: other numbers are other models and seeds")
    args = parser.parse_args()
    with process_group():
        for run, done in enumerate(range(0, args.steps, LONGEST), args.first):
            here = min(LONGEST, args.steps - done)
            train(run, here, args.folder)
            say_progress(done + here, args.steps)


if __name__ == "__main__":
    main()
