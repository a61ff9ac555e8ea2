"""Trains the same thing without and with unisono, and compares every bit of the weights."""

import contextlib
import os
import resource
import signal
import sys
import time

import torch
import torch.distributed as dist
from common import batch, digest, optimizer_for, process_group, say, wrapped
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.functional import cross_entropy

import unisono
from unisono.exchange.thread import ExchangeThread
from unisono.listen.gradient_reader import GradientReader
from unisono.listen.handover import Handover

FIRED = {}


def train(kind, optimizer_name, steps, monitored, run_dir, *, accumulate=1, compress=False, scaled=False, **options):
    model = wrapped(kind, **options)
    if compress:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = optimizer_for(optimizer_name, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=20, enabled=scaled)
    monitor = unisono.attach(model, optimizer, run_dir=run_dir) if monitored else contextlib.nullcontext()
    torch.manual_seed(100 + dist.get_rank())
    generator = torch.Generator().manual_seed(dist.get_rank())
    with monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            for micro in range(accumulate):
                inputs, labels = batch(kind, generator)
                with model.no_sync() if micro + 1 < accumulate else contextlib.nullcontext():
                    scaler.scale(cross_entropy(model(inputs), labels) / accumulate).backward()
            scaler.step(optimizer)
            scaler.update()
    return digest(model.module)


def raising(*_):
    FIRED["raised"] = FIRED.get("raised", 0) + 1
    raise ValueError("injected")


@contextlib.contextmanager
def injected(owner, name, replacement):
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def raise_in_every_step(owner, name):
    guilty = dist.get_rank() == dist.get_world_size() - 1
    with injected(owner, name, raising) if guilty else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def late_once(seconds):
    original = ExchangeThread._turn
    guilty = dist.get_rank() == dist.get_world_size() - 1
    slept = []

    def turn(self):
        original(self)
        if guilty and not slept and self._ring_has_steps():
            slept.append(True)
            FIRED["slept"] = 1
            time.sleep(seconds)

    ExchangeThread._ring_has_steps = lambda self: self.message_store.sent > 0
    with injected(ExchangeThread, "_turn", turn):
        yield


@contextlib.contextmanager
def full_disk():
    """Files may not grow past 4 KB: writes fail half-way, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


CASES = {
    "perceptron-sgd": ("perceptron", "sgd", {}),
    "perceptron-adamw": ("perceptron", "adamw", {}),
    "convolutional-sgd": ("convolutional", "sgd", {}),
    "convolutional-adamw": ("convolutional", "adamw", {}),
    "transformer-sgd": ("transformer", "sgd", {}),
    "transformer-adamw": ("transformer", "adamw", {}),
    "accumulation": ("perceptron", "adamw", {"accumulate": 3}),
    "compression": ("perceptron", "adamw", {"compress": True}),
    "scaler": ("perceptron", "adamw", {"scaled": True}),
    "bucket-view": ("transformer", "adamw", {"gradient_as_bucket_view": True}),
    "static-graph": ("transformer", "adamw", {"static_graph": True}),
    "checkpointed": ("checkpointed", "adamw", {}),
    "find-unused": ("transformer", "sgd", {"find_unused_parameters": True}),
}
FAULTS = {
    "raising-reader": lambda: raise_in_every_step(GradientReader, "hear"),
    "raising-signal": lambda: raise_in_every_step(Handover, "signal"),
    "raising-thread": lambda: raise_in_every_step(ExchangeThread, "_turn"),
    "late-3s": lambda: late_once(3.0),
    "full-disk": full_disk,
}


def compare(name, kind, optimizer_name, options, steps, fault=contextlib.nullcontext):
    run_dir = os.path.join(os.environ["RESULTS"], name)
    plain = train(kind, optimizer_name, steps, False, run_dir, **options)
    FIRED.clear()
    with fault():
        heard = train(kind, optimizer_name, steps, True, run_dir, **options)
    say(name, {"plain": plain, "heard": heard, "fired": dict(FIRED)})


if __name__ == "__main__":
    steps, names = int(sys.argv[1]), sys.argv[2:]
    with process_group():
        for name in names:
            if name in CASES:
                kind, optimizer_name, options = CASES[name]
                compare(name, kind, optimizer_name, options, steps)
            else:
                compare(name, "perceptron", "adamw", {}, steps, FAULTS[name])
