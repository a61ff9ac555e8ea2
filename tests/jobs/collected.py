"""Gradients under DDP that are noted as they arrive and read later: are they still this worker's own?

Prints, for each way to train, how often they were read, how many were no longer what had arrived, and whether the
weights are those of a run that nobody listens to.
"""

import gc
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from unisono.listen import read_timing
from unisono.listen.models.ddp import DDPWrapper
from unisono.listen.read_timing import GradientLifetime, ReadTiming

STEPS = 4
IN_BUCKETS = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.05}


class Chain(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
        self._checkpointed = checkpointed

    def forward(self, inputs):
        for layer in self.layers:
            inputs = checkpoint(layer, inputs, use_reentrant=True) if self._checkpointed else layer(inputs)
        return inputs


class Listening:
    def __init__(self, model, lifetime):
        self.reads = self.changed = self.read = 0
        self._wrapper, self._lifetime = DDPWrapper(model), lifetime
        self._pending = []
        self._collector = ReadTiming(self._read)
        self._parameters = list(model.parameters())
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def begin(self):
        self._collector.begin(self._lifetime or self._wrapper.lifetime_of_gradients(), self._parameters)

    def end(self):
        self._collector.end(bool(self._pending))

    def _arrived(self, parameter):
        self._pending.append((parameter.grad, parameter.grad.clone()))
        self._collector.noted(parameter, parameter.grad)

    def _read(self):
        self.reads += bool(self._pending)
        self.read += len(self._pending)
        self.changed += sum(not torch.equal(now, arrived) for now, arrived in self._pending)
        self._pending = []


def train(listen, zeroed=False, checkpointed=False, lifetime=None, **options):
    torch.manual_seed(0)
    model = DistributedDataParallel(Chain(checkpointed), **options)
    listening = Listening(model, lifetime) if listen else None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=not zeroed)
        inputs = torch.randn(8, 64, generator=generator).requires_grad_()
        loss = model(inputs).square().mean()
        if listening:
            listening.begin()
        loss.backward()
        if listening:
            listening.end()
        optimizer.step()
    return listening, [parameter.detach() for parameter in model.parameters()]


CASES = {
    "copies": {},
    "views": IN_BUCKETS,
    "views, held": IN_BUCKETS | {"held": 20_000},
    "views, zeroed": IN_BUCKETS | {"zeroed": True},
    "views, unused": IN_BUCKETS | {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "static, views": IN_BUCKETS | {"static_graph": True},
    "reentrant": {"checkpointed": True},
    "too late": IN_BUCKETS | {"zeroed": True, "lifetime": GradientLifetime.STAY},
}


def main():
    dist.init_process_group("gloo")
    found = {}
    for name, options in CASES.items():
        read_timing.HELD_BYTES = options.pop("held", 64 << 20)
        _, plain = train(False, **options)
        listening, weights = train(True, **options)
        equal = all(torch.equal(a, b) for a, b in zip(plain, weights, strict=True))
        found[name] = {"reads": listening.reads, "read": listening.read, "changed": listening.changed, "equal": equal}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    # Destroying the group while a wrapped model lives can abort.
    del listening
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
