"""Trains with steering until one rank is killed in the middle of its own part of the decision, or is late in it."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from common import batch, digest, optimizer_for, process_group, wrapped
from torch.nn.functional import cross_entropy

import unisono
from unisono.exchange.collectives import SteeringCollectives
from unisono.weightings import AgreementFilter

STEPS, FATAL = 20, 6
how = sys.argv[1]


def interrupted(original, step):
    """Between the exchange of gradients and the word of the first worker."""

    def verdict(self, decide):
        if step[0] == FATAL and dist.get_rank() == 1:
            if how != "late":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3.0)
        return original(self, decide)

    return verdict


def main():
    model = wrapped("perceptron")
    optimizer = optimizer_for("sgd", model)
    step = [0]
    SteeringCollectives.weights = interrupted(SteeringCollectives.weights, step)
    steering = (
        {} if how == "none" else {"weighting": AgreementFilter(), "gram": "exact" if how == "exact" else "sketch"}
    )
    unisono.attach(model, optimizer, run_dir=os.path.join(os.environ["RESULTS"], "run"), **steering)
    generator = torch.Generator().manual_seed(0)
    with open(os.path.join(os.environ["RESULTS"], f"prints.{dist.get_rank()}"), "w") as file:
        for step[0] in range(STEPS):
            inputs, labels = batch("perceptron", generator)
            optimizer.zero_grad()
            if how == "none" and step[0] == FATAL and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            print(digest(model.module), file=file, flush=True)


if __name__ == "__main__":
    with process_group():
        main()
