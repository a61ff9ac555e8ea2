"""Small models and honest training loops shared by the jobs that tests start as real processes."""

import contextlib
import gc
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        return self.head(self.norm(self.stem(images)).relu().mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)).mean(1))


class Checkpointed(nn.Module):
    """Batch statistics inside a checkpointed part: whoever unpacks a saved tensor runs the part once more."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 10)
        self.weight = torch.tensor(1.5)

    def forward(self, inputs):
        return checkpoint(self.part, inputs, use_reentrant=False)

    def part(self, inputs):
        return self.head(self.norm(self.first(inputs)).relu()) * self.weight


def perceptron():
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


MODELS = {
    "perceptron": perceptron,
    "checkpointed": Checkpointed,
    "convolutional": Convolutional,
    "transformer": Transformer,
}


def batch(kind, generator, size=8):
    labels = torch.randint(0, 10, (size,), generator=generator)
    if kind == "convolutional":
        return torch.randn(size, 3, 8, 8, generator=generator), labels
    if kind == "transformer":
        return torch.randint(0, 32, (size, 12), generator=generator), labels
    return torch.randn(size, 32, generator=generator), labels


def optimizer_for(name, model):
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), 1e-3)
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def digest(model):
    """A sha256 over parameters and buffers: equal only if every bit is."""
    sha = hashlib.sha256()
    for tensor in model.state_dict().values():
        sha.update(tensor.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def raised(work):
    """The error every rank meets."""
    try:
        work()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


def say(name, value):
    """Leaves a result of this rank for the test."""
    with open(os.path.join(os.environ["RESULTS"], f"{name}.{dist.get_rank()}.json"), "w") as file:
        json.dump(value, file)


@contextlib.contextmanager
def process_group():
    """Set up, and torn down in the order that does not deadlock."""
    torch.set_num_threads(1)
    rank, world, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    if os.environ["TORCHELASTIC_MAX_RESTARTS"] == "0":
        dist.init_process_group("gloo")
    else:
        # Half of all restarts fail in torchrun's own store, with or without unisono.
        rendezvous = os.path.join(os.environ["RESULTS"], f"rendezvous-{attempt}")
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    yield
    dist.barrier()
    gc.collect()
    time.sleep(0.2)
    dist.destroy_process_group()


def wrapped(kind, seed=0, **options):
    torch.manual_seed(seed)
    return DistributedDataParallel(MODELS[kind](), **options)
