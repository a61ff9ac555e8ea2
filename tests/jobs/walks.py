"""A gradient that is not finite, with a guard: one finding is told, and one step is skipped.

Each rank leaves behind which of unisono's functions were called from that step on.
"""

import math
import os
import time

import torch
import torch.distributed as dist
from common import batch, process_group, wrapped
from torch.nn.functional import cross_entropy

import unisono
from call_trace import Recorder

BAD, MOST = 5, 500


def train(folder, recorder):
    told = []
    model = wrapped("perceptron")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    run_dir = os.path.join(folder, "run")
    monitor = unisono.attach(model, optimizer, guard=unisono.guard(), run_dir=run_dir, on_finding=told.append)
    generator = torch.Generator().manual_seed(dist.get_rank())
    with monitor:
        for step in range(MOST):
            inputs, labels = batch("perceptron", generator)
            optimizer.zero_grad()
            if step == BAD:
                recorder.rows.clear()
                inputs = inputs * math.nan if dist.get_rank() == 1 else inputs
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            time.sleep(0.03)  # a turn of the listening thread
            enough = torch.tensor(float(any(finding.at_least("warning") for finding in told)))
            dist.broadcast(enough, 0)
            if enough:
                break


if __name__ == "__main__":
    with process_group():
        recorder = Recorder(dist.get_rank())
        with recorder.recording():
            train(os.environ["RESULTS"], recorder)
        recorder.save(os.path.join(os.environ["RESULTS"], f"calls.{recorder.rank}.json"))
