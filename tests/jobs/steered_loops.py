"""Training loops of unusual shapes, steered: a skipped step leaves no trace in them either."""

import copy
import os
import sys

import torch
import torch.distributed as dist
from common import batch, digest, perceptron, process_group, say
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import unisono
from unisono.act.weightings.spec import VARIABLE
from unisono.exchange import same_request
from unisono.weightings import AgreementFilter, Mean

STEPS, FROM = 8, 4
asked_at = []


def at_first_everybody(step):
    asked_at.append(step)
    return 2.0 if step < FROM else 0.0


FILTER = AgreementFilter(max_distance=at_first_everybody)


def wrapped(**options):
    torch.manual_seed(0)
    return DistributedDataParallel(perceptron(), **options)


def loss_of(model, generator):
    inputs, labels = batch("perceptron", generator)
    return cross_entropy(model(inputs), labels)


def attached(model, weighting=FILTER, name="run", **options):
    return unisono.attach(model, weighting=weighting, run_dir=os.path.join(os.environ["RESULTS"], name), **options)


def generator():
    return torch.Generator().manual_seed(dist.get_rank())


def closure(make):
    model, data, prints = wrapped(), generator(), []
    optimizer = make(model.parameters())

    def evaluate():
        optimizer.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        return loss

    with attached(model):
        for _ in range(STEPS):
            optimizer.step(evaluate)
            prints.append(digest(model.module))
    return {"prints": prints}


def two_optimizers():
    model, data, prints = wrapped(), generator(), []
    halves = [torch.optim.SGD(part.parameters(), 0.1, momentum=0.9) for part in (model.module[0], model.module[2])]
    with attached(model):
        for _ in range(STEPS):
            for optimizer in halves:
                optimizer.zero_grad()
            loss_of(model, data).backward()
            for optimizer in halves:
                optimizer.step()
                with torch.no_grad():
                    model(torch.zeros(1, 32))
            prints.append(digest(model.module))
    return {"prints": prints}


def zeroed_in_place():
    model, data, prints = wrapped(), generator(), []
    optimizer, seen = torch.optim.AdamW(model.parameters(), 1e-3), []
    with attached(model):
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            loss_of(model, data).backward()
            optimizer.step()
            seen.append(all(parameter.grad is not None for parameter in model.parameters()))
            prints.append(digest(model.module))
    return {"prints": prints, "seen": all(seen)}


def wrapped_again():
    model, data = wrapped(), generator()
    monitor = attached(model, weighting=AgreementFilter(max_distance=0))
    optimizer, moved = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(2):
        before = digest(model.module)
        loss_of(model, data).backward()
        optimizer.step()
        optimizer.zero_grad()
        moved.append(digest(model.module) != before)
        model = DistributedDataParallel(model.module)
    monitor.close()
    return {"moved": moved}


def resumed():
    """The schedule is asked about steps of the whole training, once per optimizer step."""
    model, data = wrapped(), generator()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    asked_at.clear()
    with attached(model, first_step=5000):
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, data).backward()
            loss_of(model, data).backward()
            optimizer.step()
    return {"asked_at": list(asked_at)}


def copied():
    model = wrapped()
    attached(model).close()
    copy.deepcopy(model)
    AveragedModel(model)
    torch.save(model, os.path.join(os.environ["RESULTS"], f"model.{dist.get_rank()}"))
    return {"copied": True}


def under_autocast():
    """Backward inside it, too: inner products of scaled gradients would overflow in half precision."""
    model, data, prints = wrapped(), torch.Generator().manual_seed(0), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with attached(model, weighting=AgreementFilter()):
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                (loss_of(model, data) * 2.0**16).backward()
            for parameter in model.parameters():
                parameter.grad.div_(2.0**16)
            optimizer.step()
            prints.append(digest(model.module))
    return {"prints": prints, "moved": len(set(prints)) == STEPS}


def attached_twice():
    os.environ[VARIABLE] = "mean"
    model = wrapped()
    attached(model, weighting=None, name="first")
    attached(model, weighting=Mean(), name="second")
    del os.environ[VARIABLE]
    return {"attached": True}


def alone():
    """One rank asks for steering, the other does not."""
    same_request.PATIENCE = 2.0
    model = wrapped()
    try:
        attached(model, weighting=Mean() if dist.get_rank() == 0 else None)
    except ValueError as error:
        return {"error": str(error)}
    return {"error": None}


def unused():
    """A head that takes no part in every other step."""
    torch.manual_seed(0)
    heads = nn.ModuleList([nn.Linear(32, 10), nn.Linear(32, 10)])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = heads

        def forward(self, inputs, head):
            return self.heads[head](inputs)

    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    optimizer, data, prints = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), generator(), []
    with attached(model):
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, labels = batch("perceptron", data)
            cross_entropy(model(inputs, step % 2), labels).backward()
            optimizer.step()
            prints.append(digest(model.module))
    return {"prints": prints}


CASES = {
    "closure": lambda: closure(lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.1)),
    "closure-lbfgs": lambda: closure(lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=1)),
    "two-optimizers": two_optimizers,
    "zeroed-in-place": zeroed_in_place,
    "unused": unused,
    "wrapped-again": wrapped_again,
    "resumed": resumed,
    "copied": copied,
    "under-autocast": under_autocast,
    "attached-twice": attached_twice,
    "alone": alone,
}

if __name__ == "__main__":
    with process_group():
        for name in sys.argv[1:]:
            say(name, CASES[name]())
