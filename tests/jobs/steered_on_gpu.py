"""Steering on a GPU that all ranks share through gloo, and what NCCL alone can do with one rank.

PYTHONPATH=src torchrun --standalone --nproc-per-node 4 tests/jobs/steered_on_gpu.py RESULTS
"""

import contextlib
import gc
import hashlib
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from common import MODELS
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.exchange.collectives import SteeringCollectives
from unisono.weightings import AgreementFilter

STEPS, FROM = 12, 4


def print_of(model):
    weights = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(weights).hexdigest()


def lesson(generator):
    inputs = torch.randn(64, 32, generator=generator)
    return inputs.cuda(), inputs[:, :10].argmax(1).cuda()


def train(weighting, factor=None, scaled=False, kind="sgd", **steering):
    torch.manual_seed(0)
    model = DistributedDataParallel(MODELS["perceptron"]().cuda(), bucket_cap_mb=0.01)
    optimizers = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        "fused": lambda: torch.optim.AdamW(model.parameters(), 1e-3, fused=True),
        "capturable": lambda: torch.optim.AdamW(model.parameters(), 1e-3, capturable=True),
    }
    optimizer = optimizers[kind]()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, enabled=scaled)
    monitor = contextlib.nullcontext()
    if weighting is not None:
        monitor = unisono.attach(model, optimizer, weighting=weighting, run_dir=sys.argv[1] + "/run", **steering)
    generator, prints = torch.Generator().manual_seed(dist.get_rank()), []
    with monitor:
        for step in range(STEPS):
            inputs, labels = lesson(generator)
            optimizer.zero_grad()
            scaler.scale(cross_entropy(model(inputs), labels) * (1.0 if factor is None else factor(step))).backward()
            scaler.step(optimizer)
            scaler.update()
            prints.append(print_of(model))
    return prints


def everywhere(prints):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, prints)
    return all(other == prints for other in found)


def on_rank_1(value):
    return lambda step: value if dist.get_rank() == 1 and step >= FROM else 1.0


def at_first_everybody(step):
    return 2.0 if step < FROM else 0.0


def checked():
    result, plain = {}, train(None)
    for gram in ("sketch", "exact"):
        for scope in ("model", "bucket"):
            prints = train(AgreementFilter(max_distance=2), gram=gram, scope=scope)
            result[f"everybody-{gram}-{scope}"] = {"like plain DDP": prints == plain, "equal": everywhere(prints)}
        for name, value in (("flipped", -1.0), ("nan", math.nan)):
            prints = train(AgreementFilter(), on_rank_1(value), gram=gram)
            result[f"{name}-{gram}"] = {"equal": everywhere(prints), "steps taken": len(set(prints))}
    for kind in ("sgd", "fused", "capturable"):
        prints = train(AgreementFilter(max_distance=at_first_everybody), scaled=kind == "fused", kind=kind)
        result[f"skipped-{kind}"] = {"equal": everywhere(prints), "kept": len(set(prints[FROM - 1 :])) == 1}
    return result


def by_nccl():
    """One rank is all that a GPU allows; weights are applied on the way."""
    group = dist.new_group([dist.get_rank()], backend="nccl", use_local_synchronization=True)
    collectives = SteeringCollectives(group, torch.device("cuda"))
    vector = torch.randn(1001, device="cuda")
    gram_WW, square_W = collectives.gram([collectives.swap(vector).arrived()], vector.double().square().sum())
    weighted, left_out = vector.clone(), torch.full_like(vector, math.nan)
    collectives.add_up(weighted, 0.25).wait()
    collectives.add_up(left_out, 0.0).wait()
    back = torch.empty_like(vector)
    collectives.put_together(back, vector.clone())
    return {
        "by nccl": collectives.by_nccl,
        "gram": abs(float(gram_WW / square_W) - 1),
        "weights applied": bool(torch.equal(weighted, vector * 0.25)),
        "left out": bool((left_out == 0).all()),
        "verdict": collectives.weights(lambda: [0.5]),
        "put together": bool(torch.equal(back, vector)),
    }


if __name__ == "__main__":
    torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    found = checked()
    dist.barrier()
    if dist.get_rank() == 0:
        found["nccl, one rank"] = by_nccl()
        found |= {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "workers": dist.get_world_size()}
        with open(os.path.join(sys.argv[1], "steered_on_gpu.json"), "w") as file:
            json.dump(found, file, indent=1)
        print(json.dumps(found, indent=1))
    dist.barrier()
    gc.collect()
    time.sleep(0.2)
    dist.destroy_process_group()
