"""Replicas come apart in many ways and are made equal again: real processes, forked, one group of them after another.

Called with `repairs CASE ...` or `deaths POINT ...`; what became of it is left as JSON in the folder RESULTS.
"""

import contextlib
import copy
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import warnings

import torch
import torch._dynamo  # optimizers import it with their first step: once before the processes part, not in each
import torch.distributed as dist
from resync_faults import BUILT, CASES, DEVICE, SUBGROUPS, Model, everything
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from unisono.act.actions import resync_transfer
from unisono.act.actions.resync import resync

WORKERS = 4
BEFORE, AFTER = 3, 2
HANGS_AFTER = 60


class Training:
    def __init__(self, group=None, model=Model, optimizer=torch.optim.AdamW, dtype=None, shared_buffers=False):
        torch.manual_seed(0)
        group = group or dist.group.WORLD
        self.model = DistributedDataParallel(model().to(DEVICE), process_group=group, broadcast_buffers=shared_buffers)
        if dtype is not None:
            self.model = DistributedDataParallel(nn.Linear(6, 4).to(DEVICE, dtype), process_group=group)
        self.group, self.dtype = self.model.process_group, dtype
        if optimizer is ZeroRedundancyOptimizer:
            self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.Adam, lr=0.01)
        else:
            self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.generator = torch.Generator().manual_seed(dist.get_rank())
        self.earlier = None

    @property
    def inner(self):
        return self.model.module

    def backward(self):
        self.optimizer.zero_grad()
        inputs = torch.randn(8, 6, generator=self.generator).to(DEVICE, self.dtype or torch.float32)
        self.model(inputs).pow(2).mean().backward()

    def train(self, steps):
        for _ in range(steps):
            if not isinstance(self.optimizer, ZeroRedundancyOptimizer):
                self.earlier = copy.deepcopy((self.inner.state_dict(), self.optimizer.state_dict()))
            self.backward()
            self.optimizer.step()

    def digest(self):
        """Of parameters, buffers and all that the optimizer remembers: equal only if every bit is."""
        sha = hashlib.sha256()
        for tensor in (*self.inner.parameters(), *self.inner.buffers()):
            sha.update(bits(tensor))
        if not isinstance(self.optimizer, ZeroRedundancyOptimizer):
            for parameter in self.inner.parameters():
                for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                    sha.update(f"{key} {value.dtype}".encode() + bits(value))
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        sha.update(repr(groups).encode())
        return sha.hexdigest()

    def memory(self):
        """Where parameters and buffers lie: it must not change."""
        return [(id(tensor), tensor.data_ptr()) for tensor in (*self.inner.parameters(), *self.inner.buffers())]


def bits(tensor):
    flat = tensor.detach().cpu().contiguous().reshape(-1).clone()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def repaired(case):
    """A fault after a backward pass, made good at once: training goes on as if nothing had been."""
    rank = dist.get_rank()
    members = SUBGROUPS.get(case)
    group = None if members is None else dist.new_group(members)
    if members is not None and rank not in members:
        return {"outside": True}
    run, built_anew = Training(group, **BUILT.get(case, {})), Training(group, **BUILT.get(case, {}))
    for each in (run, built_anew):
        each.train(BEFORE)
        each.backward()
    fault = CASES[case].get(rank)
    if fault is not None:
        fault(run)
    memory, before, optimizers = run.memory(), run.digest(), [run.optimizer]
    if case == "other-optimizers" and rank == 2:
        optimizers *= 2
    resync_transfer.AT_ONCE = 96 if case == "pieces" else 1 << 26
    try:
        told = resync(run.group, run.model, optimizers)
    except RuntimeError as error:
        if not str(error).startswith("To resync"):
            raise
        return {"error": str(error), "unchanged": run.digest() == before}
    after, untouched = run.digest(), run.digest() == before
    kept = run.memory() == memory
    again = resync(run.group, run.model, optimizers).sentence(range(dist.get_world_size()))
    for each in (run, built_anew):
        each.optimizer.step()
        each.train(AFTER)
    return {
        "source": told.source,
        "overwritten": [[getattr(each, name) for name in each.__dataclass_fields__] for each in told.overwritten],
        "sentence": told.sentence(dist.get_process_group_ranks(run.group)),
        "again": again,
        "after": after,
        "untouched": untouched,
        "kept": kept,
        "end": run.digest(),
        "as if nothing had been": run.digest() == built_anew.digest(),
    }


def dies_at(call, victim):
    """The victim's process ends before its collective of this number; 0: before DDP's own."""
    if dist.get_rank() != victim:
        return
    calls = 0

    def counted(collective):
        def called(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return collective(*args, **kwargs)

        return called

    dist.all_gather, dist.broadcast = counted(dist.all_gather), counted(dist.broadcast)


def struck(point):
    call, victim = map(int, point.split("-"))
    run = Training()
    run.train(BEFORE)
    run.backward()
    if dist.get_rank() == 2:
        everything(run)
    resync_transfer.AT_ONCE = 96  # many pieces: some have arrived, some have not
    dies_at(call, victim)
    if call == 0 and dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        if call:
            resync(run.group, run.model, [run.optimizer])
            if dist.get_rank() == victim:
                os.kill(os.getpid(), signal.SIGKILL)
        run.optimizer.step()
        run.train(AFTER)
    except RuntimeError as error:
        return {"error": type(error).__name__}
    return {"error": None}


def worker(rank, function, names, folder, rendezvous):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{rendezvous}", rank=rank, world_size=WORKERS)
    for name in names:
        with open(f"{folder}/{name}.{rank}.json", "w") as file:
            json.dump(function(name), file)
    if function is repaired:
        dist.barrier()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    sys.stdout.flush()
    # Past what the interpreter does at its end, which may abort where a group is broken.
    os._exit(0)


def all_ended(function, names, folder, rendezvous):
    """How each process has ended; None where it was still there long after."""
    context = multiprocessing.get_context("fork")
    settings = [(rank, function, names, folder, rendezvous) for rank in range(WORKERS)]
    processes = [context.Process(target=worker, args=each) for each in settings]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANGS_AFTER)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def main(what, *rest):
    folder = os.environ["RESULTS"]
    if what == "repairs":
        codes = {"repairs": all_ended(repaired, rest, folder, "rendezvous")}
    else:
        codes = {point: all_ended(struck, [point], folder, f"rendezvous-{point}") for point in rest}
    with open(f"{folder}/codes.json", "w") as file:
        json.dump(codes, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
