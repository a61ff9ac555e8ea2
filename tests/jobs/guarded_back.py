"""Rolling back, as real processes: a replay without the fault ends with the same bits as a run that never had it."""

import hashlib
import os
import random
import signal
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from common import Convolutional, digest, process_group, say
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono
from guarded import at, run_dir, scaled_gradients, state_print, told
from unisono.act.actions import resync_transfer
from unisono.act.checkpoints import DiskStore, model_part
from unisono.act.guard import executor
from unisono.act.guard.executor import Executor

STEPS, BAD = 45, 37
CHECKPOINTS = unisono.Checkpoints(every=10, keep=2, quiet=5)
ON_DISK = unisono.Checkpoints(every=10, keep=2, quiet=5, where="disk")


class Sampler:
    """Draws a shuffled data set in epochs, and knows where it is."""

    def __init__(self, size, seed):
        self.size, self.seed, self.position = size, seed, 0

    def next(self, count):
        epoch, place = divmod(self.position * count, self.size)
        order = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed + 977 * epoch))
        self.position += 1
        return order[place : place + count]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Dropping(nn.Module):
    """Random numbers in forward, and statistics in buffers."""

    def __init__(self):
        super().__init__()
        self.images, self.dropout = Convolutional(), nn.Dropout(0.2)

    def forward(self, inputs):
        return self.images(self.dropout(inputs))


class Run:
    def __init__(self, name, seed=0, fault=None, guard=None, adam=True, says_so=False):
        self.says_so = says_so
        torch.manual_seed(seed)
        random.seed(seed + dist.get_rank())
        np.random.seed(seed + dist.get_rank())
        self.fault = fault or (lambda number: 1.0)
        self.model = DistributedDataParallel(Dropping())
        torch.manual_seed(seed + 100 * dist.get_rank())
        make = torch.optim.AdamW if adam else lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9)
        self.optimizer = make(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.sampler = Sampler(96, seed + dist.get_rank())
        self.data = torch.randn(96, 3, 8, 8, generator=torch.Generator().manual_seed(7))
        self.labels = torch.arange(96) % 10
        self.monitor = unisono.attach(
            self.model,
            self.optimizer,
            guard=guard,
            state=() if guard is None else (self.scheduler, self.sampler),
            run_dir=run_dir(name),
        )
        self.multiplier = [1.0]
        scaled_gradients(self.model, self.multiplier)
        self.taken = 0

    def step(self):
        self.multiplier[0] = self.fault(self.taken)
        self.taken += 1
        chosen = self.sampler.next(8)
        noise = random.random() + float(np.random.rand()) + torch.rand(())
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(self.data[chosen] * (1 + 0.1 * noise)), self.labels[chosen])
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        if self.says_so:
            self.monitor.step()

    def run(self, steps=STEPS):
        with self.monitor:
            while self.sampler.position < steps:
                if self.taken == BAD - 2 and self.monitor._guard_hooks is not None:
                    wait_for_checkpoint(self.monitor._guard_hooks._executor.store)
                self.step()
        return self.result()

    def result(self):
        return {
            "print": digest(self.model.module),
            "weights": weights_print(self.model),
            "state": state_print(self.optimizer),
            "rate": self.optimizer.param_groups[0]["lr"],
            "random": [torch.rand(()).item(), random.random(), float(np.random.rand())],
            "taken": self.taken,
            "decisions": told(self.monitor),
        }


def wait_for_checkpoint(store, patience=30):
    """Steps take a millisecond; a busy disk takes longer, and nobody can go back to what is not written yet."""
    deadline = time.monotonic() + patience
    while store is not None and not store.held() and time.monotonic() < deadline:
        time.sleep(0.01)


def weights_print(model):
    """Without buffers, which differ between ranks until the next forward pass."""
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()


def replayed(seed, checkpoints):
    guard = unisono.guard(rollback=True, checkpoints=checkpoints)
    adam = seed % 2 == 0
    never = Run(f"never-{seed}", seed, adam=adam).run()
    once = Run(f"once-{seed}", seed, at(BAD, 1e6, rank=seed % 2), guard, adam=adam, says_so=seed % 3 == 0).run()
    return {"never": never, "once": once}


def killed_in(phase):
    """On rank 1, in the first attempt: while it goes back, or while it is made equal to the others."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" or dist.get_rank() != 1:
        return
    owner, name = PHASES[phase]
    original = getattr(owner, name)

    def dies(*args, **kwargs):
        armed = bool(ARMED)
        result = original(*args, **kwargs) if phase in LATE or not armed else None
        if armed:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dies)


PHASES = {
    "decided": (Executor, "_roll_back"),
    "fetching": (DiskStore, "fetch"),
    "half-way": (model_part, "put_back_buffers"),
    "gone-back": (executor, "go_back"),
    "before-resync": (executor, "resync"),
    "while-sending": (resync_transfer, "_fill"),
    "after-resync": (Executor, "_resync"),
}
LATE = ("gone-back", "after-resync")
ARMED = []
"""Not empty when there is something to repair or to go back from."""


def restarted(phase):
    """Dies in a phase, is started again by torchrun, and goes on from the newest healthy checkpoint."""
    killed_in(phase)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    going_back = phase in ("decided", "fetching", "half-way", "gone-back")
    guard = unisono.guard(rollback=True, resync=False if going_back else 5, checkpoints=ON_DISK)
    fault = at(BAD, 1e6, rank=0) if going_back and attempt == "0" else None
    run = Run(f"restarted-{phase}", fault=fault, guard=guard, says_so=True)
    begun = run.monitor.restore()
    with run.monitor:
        while run.sampler.position < STEPS:
            run.step()
            time.sleep(0.01)
            if run.taken == BAD:
                ARMED.append(phase)
            if not going_back and attempt == "0" and run.taken == BAD and dist.get_rank() == 1:
                next(run.model.parameters()).detach().add_(1e-3)
    return {"begun": begun, "attempt": attempt, **run.result()}


JOBS = {
    "replays": lambda count: [replayed(seed, CHECKPOINTS if seed % 5 else ON_DISK) for seed in range(int(count))],
    "replay": lambda: [replayed(0, ON_DISK)],
    "never": lambda: Run("never").run(),
    **{phase: lambda phase=phase: restarted(phase) for phase in PHASES},
}

if __name__ == "__main__":
    with process_group():
        for job in sys.argv[1:]:
            name, *arguments = job.split(":")
            say(name, JOBS[name](*arguments))
