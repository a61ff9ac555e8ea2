"""Trains a few steps of an awkward model and keeps every rank's full local gradients beside unisono's run."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from common import MODELS, batch, process_group
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import unisono

STEPS = 6


class Awkward(nn.Module):
    """Frozen, shared, unused, zero-size, half-used and complex parameters."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 48)
        self.second = nn.Linear(48, 48)
        self.shared = nn.Linear(48, 48)
        self.frozen = nn.Linear(48, 48).requires_grad_(False)
        self.empty = nn.Parameter(torch.zeros(0))
        self.unused = nn.Parameter(torch.ones(7))
        self.wave = nn.Parameter(torch.randn(48, dtype=torch.complex64))
        self.head = nn.Linear(48, 10)

    def forward(self, inputs):
        hidden = self.shared(self.shared(self.first(inputs)).relu()).relu()
        hidden = self.frozen(hidden) + (torch.fft.fft(hidden) * self.wave).real
        return self.head(self.second(hidden))


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 16, sparse=True)
        self.head = nn.Linear(16, 10)

    def forward(self, inputs):
        return self.head(self.table((inputs[:, :8].abs() * 20).long().clamp(max=63)).mean(1))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 48)
        self.head = nn.Linear(48, 10)

    def forward(self, inputs):
        hidden = self.first(inputs)
        for _ in range(2):
            hidden = checkpoint(self.second, hidden, use_reentrant=True).relu()
        return self.head(hidden)


class LastChannels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 10)
        self.to(memory_format=torch.channels_last)

    def forward(self, inputs):
        images = inputs[:, :27].reshape(-1, 3, 3, 3).to(memory_format=torch.channels_last)
        return self.head(self.conv(images).mean((2, 3)))


SHAPES = {
    "plain": (MODELS["perceptron"], {}),
    "small-buckets": (MODELS["perceptron"], {"bucket_cap_mb": 0.001}),
    "bucket-view": (MODELS["perceptron"], {"gradient_as_bucket_view": True}),
    "static-graph": (Checkpointed, {"static_graph": True}),
    "awkward": (Awkward, {"find_unused_parameters": True}),
    "sparse": (Sparse, {}),
    "channels-last": (LastChannels, {}),
    "bfloat16": (lambda: MODELS["perceptron"]().bfloat16(), {}),
    "double": (lambda: MODELS["perceptron"]().double(), {}),
    "accumulated": (MODELS["perceptron"], {}),
    "accumulated-synced": (MODELS["perceptron"], {}),
    "scaled": (MODELS["perceptron"], {}),
    "clipped": (MODELS["perceptron"], {}),
    "compiled-inside": (MODELS["perceptron"], {}),
    "compiled-outside": (MODELS["perceptron"], {}),
}


def keep_gradients(model, store):
    """Clones what arrives at each parameter before all-reduce, with a hook of its own."""

    def keep(name, parameter):
        dense = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        store[name] = (torch.view_as_real(dense) if dense.is_complex() else dense).detach().double().clone()

    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.numel():
            parameter.register_post_accumulate_grad_hook(lambda parameter, name=name: keep(name, parameter))


def train(name):
    build, options = SHAPES[name]
    torch.manual_seed(0)
    bare = build()
    inner = torch.compile(bare, backend="aot_eager") if name == "compiled-inside" else bare
    model = DistributedDataParallel(inner, **options)
    called = torch.compile(model, backend="aot_eager") if name == "compiled-outside" else model
    dtype = next(bare.parameters()).dtype
    arrived, kept = {}, []
    keep_gradients(bare, arrived)
    optimizer = torch.optim.SGD([parameter for parameter in bare.parameters() if parameter.requires_grad], 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=name == "scaled")
    generator = torch.Generator().manual_seed(dist.get_rank())
    with unisono.attach(called, optimizer, run_dir=os.path.join(os.environ["RESULTS"], name)):
        for _ in range(STEPS):
            optimizer.zero_grad()
            losses = []
            for micro in range(2 if "accumulated" in name else 1):
                inputs, labels = batch("perceptron", generator)
                quiet = name == "accumulated" and micro == 0
                with model.no_sync() if quiet else contextlib.nullcontext():
                    loss = cross_entropy(called(inputs.to(dtype) if dtype.is_floating_point else inputs), labels)
                    loss = loss / (2 if "accumulated" in name else 1)
                    losses.append(loss.item())
                    scaler.scale(loss).backward()
                if micro == 0 or name == "accumulated":
                    local = {key: value / scaler.get_scale() for key, value in arrived.items()}
            reduced = {key: parameter.grad for key, parameter in bare.named_parameters() if parameter.grad is not None}
            step = {"loss": sum(losses), "local": local}
            if name == "clipped":
                step["clip"] = nn.utils.clip_grad_norm_(bare.parameters(), 0.01).item()
            kept.append(step)
            del reduced
            arrived.clear()
            scaler.step(optimizer)
            scaler.update()
    torch.save(kept, os.path.join(os.environ["RESULTS"], f"{name}.{dist.get_rank()}.pt"))


def join_unevenly():
    model = DistributedDataParallel(MODELS["perceptron"]())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    with unisono.attach(model, optimizer, run_dir=os.path.join(os.environ["RESULTS"], "join")), Join([model]):
        for _ in range(6 if dist.get_rank() else 3):
            inputs, labels = batch("perceptron", generator)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    with process_group():
        for name in sys.argv[1:]:
            join_unevenly() if name == "join" else train(name)
