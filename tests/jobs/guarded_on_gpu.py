"""The guard on a GPU: one rank through NCCL, where nobody waits, and two ranks that share it through gloo.

PYTHONPATH=src:tests/jobs python tests/jobs/guarded_on_gpu.py RESULTS
"""

import hashlib
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import MODELS
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono

STEPS, BAD = 40, 30
OPTIMIZERS = {
    "sgd-fused": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, fused=True),
    "adam-fused": lambda parameters: torch.optim.Adam(parameters, 1e-3, fused=True),
    "adamw-fused-capturable": lambda parameters: torch.optim.AdamW(parameters, 1e-3, fused=True, capturable=True),
    "adamw-capturable": lambda parameters: torch.optim.AdamW(parameters, 1e-3, capturable=True),
    "adam-foreach": lambda parameters: torch.optim.Adam(parameters, 1e-3, foreach=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, foreach=False),
}


def print_of(tensors):
    return hashlib.sha256(b"".join(one.detach().cpu().numpy().tobytes() for one in tensors)).hexdigest()


def state_of(optimizer):
    entries = [state[key] for state in optimizer.state.values() for key in sorted(state)]
    return print_of([one for one in entries if torch.is_tensor(one)])


class Training:
    def __init__(self, optimizer="adam-fused", guard=None, factor=None, scaled=False, name="run", dtype=None):
        torch.manual_seed(0)
        self.model = DistributedDataParallel(MODELS["convolutional"]().cuda().to(dtype))
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, enabled=scaled)
        run = os.path.join(sys.argv[1], name)
        self.monitor = unisono.attach(self.model, self.optimizer, guard=guard, run_dir=run)
        self.factor = factor or (lambda step: 1.0)
        self.multiplier = torch.ones((), device="cuda")
        for parameter in self.model.parameters():
            parameter.register_hook(lambda gradient: gradient * self.multiplier.to(gradient.dtype))
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.images = torch.randn(STEPS, 16, 3, 8, 8, generator=generator).cuda().to(dtype)
        self.labels = torch.randint(0, 10, (STEPS, 16), generator=generator).cuda()
        self.prints, self.states = [], []

    def step(self, number, look=True):
        self.multiplier.fill_(self.factor(number))
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(self.images[number]), self.labels[number])
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if look:
            self.prints.append(print_of(self.model.parameters()))
            self.states.append(state_of(self.optimizer))

    def run(self):
        with self.monitor:
            for number in range(STEPS):
                self.step(number)
        return {
            "kept": self.prints[BAD] == self.prints[BAD - 1] and self.states[BAD] == self.states[BAD - 1],
            "moved": len(set(self.prints)) == STEPS - 1,
            "finite": all(bool(one.isfinite().all()) for one in [*self.model.parameters(), *self.model.buffers()]),
            "late": self.late,
            "decisions": [[one.step, one.action, list(one.ranks)] for one in self.monitor.decisions],
            "last": self.prints[-1],
        }

    @property
    def late(self):
        guard_hooks = self.monitor._guard_hooks
        return guard_hooks is not None and guard_hooks._device_round.begun


def at(step, value, rank=0):
    return lambda number: value if number == step and dist.get_rank() == rank else 1.0


def skips():
    found = {}
    for optimizer in OPTIMIZERS:
        for value in (math.nan, 1e9):
            found[f"{optimizer} {value}"] = Training(optimizer, unisono.guard(), at(BAD, value)).run()
    found["float64"] = Training("adam-foreach", unisono.guard(), at(BAD, math.nan), dtype=torch.float64).run()
    found["scaled extreme"] = Training("adam-fused", unisono.guard(), at(BAD, 1e9), scaled=True).run()
    found["scaled inf"] = Training("adam-fused", unisono.guard(), at(BAD, math.inf), scaled=True).run()
    return found


def without_synchronisation():
    """Raises where anything of the guard makes the host wait for the GPU."""
    training = Training("adam-fused", unisono.guard(), at(BAD, math.nan))
    with training.monitor:
        for number in range(10):
            training.step(number, look=False)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for number in range(10, STEPS):
                training.step(number, look=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return {"late": training.late, "decisions": len(training.monitor.decisions)}


def back():
    """Against a run that never had the fault."""
    guard = unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(every=5, quiet=3))
    return Training("adam-fused", guard, at(BAD, 1e9)).run()


def cost(width=2048, layers=12, steps=60):
    """Milliseconds a step of a model that is not tiny, alone, listened to, and guarded; taking turns."""
    found = {name: [] for name in ("alone", "listening", "guarded", "not fused alone", "not fused guarded")}
    for _ in range(3):
        for name, times in found.items():
            torch.manual_seed(0)
            body = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())]
            model = DistributedDataParallel(nn.Sequential(*body, nn.Linear(width, 10)).cuda())
            optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused="not fused" not in name)
            guard = unisono.guard() if "guarded" in name else None
            monitor = None
            if "alone" not in name:
                run = os.path.join(sys.argv[1], "cost")
                monitor = unisono.attach(model, optimizer, guard=guard, run_dir=run, schedule=unisono.every(50))
            inputs = torch.randn(4096, width, device="cuda")
            labels = torch.randint(0, 10, (4096,), device="cuda")
            for number in range(steps + 10):
                if number == 10:
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                optimizer.zero_grad()
                cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - began) / steps)
            if monitor is not None:
                monitor.close()
    return {name: sorted(times)[1] for name, times in found.items()}


def one_rank():
    found = {"skips": skips(), "back": back(), "synchronisation": without_synchronisation(), "cost": cost()}
    leave("one-rank", found)
    leave("guard_gpu", evidence(found))


def evidence(found):
    """What the documentation tells of."""
    return {
        "command": "python tests/jobs/guarded_on_gpu.py RESULTS",
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": "50 million parameters",
        "skips": {name: [one["kept"], one["late"]] for name, one in found["skips"].items()},
        "synchronisation": found["synchronisation"],
        "cost": {name: round(milliseconds, 2) for name, milliseconds in found["cost"].items()},
    }


def two_ranks():
    found = {
        "saved": Training("adam-fused", unisono.guard(), at(BAD, math.nan, 1), name="two").run(),
        "back": back(),
        "never": Training("adam-fused").run()["last"],
    }
    leave(f"two-ranks-{dist.get_rank()}", found)


def leave(name, found):
    with open(os.path.join(sys.argv[1], f"{name}.json"), "w") as file:
        json.dump(found, file, indent=1)


def process(rank, world, backend, port, work):
    torch.cuda.set_device(0)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group(backend, rank=rank, world_size=world)
    work()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(process, (1, "nccl", 29501, one_rank), nprocs=1)
    mp.spawn(process, (2, "gloo", 29502, two_ranks), nprocs=2)
