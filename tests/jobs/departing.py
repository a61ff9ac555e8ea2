"""Training in which one rank goes, or is no longer heard, in a way given by name: `departing.py WAY RANK [STEP]`.

Without STEP it is step 20; RANK -1 stands for all ranks. The rank prints `fired WAY` in the moment in which it happens.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from common import batch, optimizer_for, wrapped
from torch.nn.functional import cross_entropy

import unisono
from unisono.exchange.thread import ExchangeThread

WAY, WHO, WHEN = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 20
STEPS = WHEN + 10
EVERYBODY = -1
THREAD_WAYS = ("thread-dead", "thread-stuck")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def raised():
    raise ValueError("as planned")


def exited():
    sys.exit(3)


def exited_at_once():
    os._exit(3)


def segfault():
    ctypes.string_at(0)


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)


WAYS = {
    "killed": killed,
    "raised": raised,
    "exited": exited,
    "os-exit": exited_at_once,
    "segfault": segfault,
    "terminated": terminated,
}


AT_THE_END = {
    "gone-at-the-end": lambda: os._exit(0),
    "late-at-the-end": lambda: time.sleep(8),
}
"""When all is trained: nobody misses the rank."""


def fired():
    print(f"fired {WAY}", flush=True)


def thread_in_trouble(model_step):
    """The listening thread of this rank dies or stands still from that step on."""
    original, done = ExchangeThread._turn, []

    def turn(self):
        original(self)
        if model_step[0] >= WHEN and not done:
            done.append(True)
            fired()
            if WAY == "thread-dead":
                raise SystemExit
            time.sleep(1_000)

    ExchangeThread._turn = turn


def train(model, optimizer, step):
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step[0] in range(STEPS):
        if step[0] == WHEN and WHO in (dist.get_rank(), EVERYBODY) and WAY in WAYS:
            fired()
            WAYS[WAY]()
        inputs, labels = batch("perceptron", generator)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        time.sleep(0.02)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    here, step = dist.get_rank() == WHO, [0]
    model = wrapped("perceptron")
    optimizer = optimizer_for("sgd", model)
    if here and WAY in THREAD_WAYS:
        thread_in_trouble(step)
    if WAY == "never-attached" and here:
        fired()
        monitor = contextlib.nullcontext()
    else:
        monitor = unisono.attach(model, optimizer, run_dir=os.path.join(os.environ["RESULTS"], "run"))
    if WAY == "crashed-at-once" and here:
        fired()
        raise ValueError("as planned")
    began = time.monotonic()
    train(model, optimizer, step)
    print(f"trained {time.monotonic() - began:.2f}", flush=True)
    if WAY in AT_THE_END and here:
        fired()
        AT_THE_END[WAY]()
    began = time.monotonic()
    if hasattr(monitor, "close"):
        monitor.close()
    print(f"closed {time.monotonic() - began:.2f}", flush=True)
    if WAY in AT_THE_END:
        os._exit(0)
    dist.barrier()
    del model, optimizer
    gc.collect()
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
