"""Leaves rank 0's sketch of its first gradient: data and weights are the same however the model is wrapped."""

import os
import sys

import torch
import torch.distributed as dist
from common import MODELS, batch, process_group
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.sketch.wire_format import WireFormat

WRAPPINGS = {
    "default": lambda model: DistributedDataParallel(model),
    "small-buckets": lambda model: DistributedDataParallel(model, bucket_cap_mb=0.001),
    "bucket-view": lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True),
    "static-graph": lambda model: DistributedDataParallel(model, static_graph=True),
    "compiled-inside": lambda model: DistributedDataParallel(torch.compile(model, backend="eager")),
    "plain": lambda model: model,
}


def first_sketch(wrap, run_dir):
    sketches, encode = [], WireFormat.encode

    def keep(self, sketch_GK, window):
        sketches.append(sketch_GK.clone())
        return encode(self, sketch_GK, window)

    WireFormat.encode = keep
    torch.manual_seed(0)
    model = wrap(MODELS["transformer"]().eval())
    inputs, labels = batch("transformer", torch.Generator().manual_seed(dist.get_rank()))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with unisono.attach(model, optimizer, run_dir=run_dir):
        for _ in range(3):  # buckets are rebuilt after the first step; a learning rate of zero keeps the gradient
            optimizer.param_groups[0]["lr"] = 0.0
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    WireFormat.encode = encode
    return torch.stack(sketches)


def main():
    with process_group():
        for name, wrap in WRAPPINGS.items():
            if name == "plain" and dist.get_world_size() > 1:
                continue
            sketch_SGK = first_sketch(wrap, os.path.join(os.environ["RESULTS"], f"run-{name}-{dist.get_rank()}"))
            if dist.get_rank() == 0:
                torch.save(sketch_SGK, os.path.join(os.environ["RESULTS"], f"{name}-{sys.argv[1]}.pt"))
            dist.barrier()


if __name__ == "__main__":
    main()
