"""Loops of unusual shapes under the guard: workers decide when DDP has reduced, and never else."""

import math
import sys

import torch
import torch.distributed as dist
from common import digest, perceptron, process_group, raised, say
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import unisono
from guarded import at, run_dir, told
from unisono.act.guard import device_round
from unisono.monitor import guard_setup as setting_up
from unisono.weightings import AgreementFilter

STEPS, BAD = 30, 25
NAN_ON_ONE = at(BAD, math.nan, rank=1)


class Loop:
    def __init__(self, name, model=None, guard=None, make=None, **options):
        torch.manual_seed(0)
        self.model = DistributedDataParallel(perceptron() if model is None else model)
        make = make or (lambda parameters: torch.optim.AdamW(parameters, 1e-3))
        self.optimizer = make(self.model.parameters())
        self.guard = guard or unisono.guard()
        self.monitor = unisono.attach(self.model, self.optimizer, guard=self.guard, run_dir=run_dir(name), **options)
        torch.manual_seed(dist.get_rank())
        self.call = self.model

    def loss(self, factor=1.0):
        inputs = torch.randn(8, 32)
        return cross_entropy(self.call(inputs), inputs[:, :10].argmax(1)) * factor

    def step(self, number, fault=NAN_ON_ONE):
        self.optimizer.zero_grad()
        self.loss(fault(number)).backward()
        self.optimizer.step()

    def result(self, **more):
        finite = all(bool(one.isfinite().all()) for one in self.model.parameters())
        return {"finite": finite, "decisions": told(self.monitor), **more}

    def run(self, steps=STEPS, **more):
        with self.monitor:
            for number in range(steps):
                self.step(number)
        return self.result(**more)


def compiled_and_looked_at():
    """Compiled, but one rank looks at an output in between."""
    loop = Loop("compiled")
    loop.call = torch.compile(loop.model, backend="eager")
    with loop.monitor:
        for number in range(STEPS):
            loop.step(number)
            if number == 3 and dist.get_rank() == 0:
                with loop.model.no_sync():
                    loop.model.module(torch.randn(2, 32))
    return loop.result()


def unwrapped_first():
    loop = Loop("unwrapped")
    if dist.get_rank() == 0:
        loop.model.module(torch.randn(2, 32)).sum().backward()
    return loop.run()


def through_another_model():
    """A pass of another model's training adds to our gradients, is bad, and is dropped; then comes our own."""
    loop, other = Loop("through"), nn.Linear(32, 32)
    other_optimizer = torch.optim.SGD(other.parameters(), 0.01)
    with loop.monitor:
        for number in range(STEPS):
            other_optimizer.zero_grad()
            (loop.model(other(torch.randn(4, 32))).sum() * NAN_ON_ONE(number)).backward()
            for parameter in other.parameters():
                parameter.grad.nan_to_num_()
            other_optimizer.step()
            loop.step(number, fault=lambda step: 1.0)
    return loop.result()


def twice_in_a_step():
    class Twice(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure):
            for _ in range(2):
                with torch.enable_grad():
                    closure()
            return super().step()

    loop = Loop("twice", make=lambda parameters: Twice(parameters, 0.01))

    def evaluate():
        loop.optimizer.zero_grad()
        loop.loss().backward()

    loop.optimizer.step(evaluate)


def more_than_the_model():
    """The optimizer also holds a loss with parameters, and what was frozen at first."""
    weight = nn.Parameter(torch.ones(()))
    model = perceptron()
    model[0].weight.requires_grad_(False)
    loop = Loop("more", model, make=lambda parameters: torch.optim.AdamW([*parameters, weight], 1e-3))
    model[0].weight.requires_grad_(True)
    with loop.monitor:
        for number in range(STEPS):
            loop.optimizer.zero_grad()
            (loop.loss(NAN_ON_ONE(number)) * weight).backward()
            loop.optimizer.step()
    return loop.result(others_finite=bool(weight.isfinite()))


def late_with_a_second_optimizer():
    """One that the device cannot keep from stepping, and that comes later."""
    setting_up.is_possible = lambda collectives, device: True
    loop = Loop("late", make=lambda parameters: torch.optim.Adam([*parameters][:2], 1e-3, fused=True))
    setting_up.is_possible = device_round.is_possible
    second = torch.optim.SGD([*loop.model.parameters()][2:], 0.01, momentum=0.9)
    begun = []
    with loop.monitor:
        for number in range(STEPS):
            loop.optimizer.zero_grad()
            second.zero_grad()
            loop.loss(NAN_ON_ONE(number)).backward()
            loop.optimizer.step()
            if number >= BAD - 1:
                second.step()
            begun.append(loop.monitor._guard_hooks._device_round.begun)
    return loop.result(begun=begun)


def without_a_torch_optimizer():
    loop = Loop("without")
    loop.optimizer = None
    loop.monitor._guard_hooks._guarded_state._optimizers.clear()
    loop.loss().backward()
    loop.monitor.step()


def inside_backward():
    loop = Loop("inside")
    for parameter in loop.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: loop.optimizer.step())
    loop.loss().backward()


def another_optimizer_later():
    """Checkpoints from before it are of no use any more."""
    guard = unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(every=5, quiet=2))
    loop = Loop("later", guard=guard)
    with loop.monitor:
        for number in range(STEPS):
            if number == BAD - 1:
                loop.optimizer = torch.optim.SGD(loop.model.parameters(), 0.01, momentum=0.9)
            loop.step(number, fault=at(BAD, 1e9, rank=1))
    return loop.result()


def does_not_fit_on_one():
    """Found out before anybody goes back."""
    guard = unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(every=5, quiet=2))
    loop = Loop("fits", guard=guard)
    with loop.monitor:
        for number in range(STEPS):
            if number == BAD and dist.get_rank() == 1:
                for snapshot in loop.monitor._guard_hooks._executor.store._snapshots.values():
                    snapshot.replica["parameters"].popitem()
            loop.step(number, fault=at(BAD, 1e9, rank=1))
    return loop.result(outcomes=[one.outcome for one in loop.monitor.decisions], prints=digest(loop.model.module))


def wrapped_again():
    loop = Loop("first", guard=unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(every=1)))
    loop.step(0)
    loop.step(1)
    loop.monitor.close()
    inner = loop.model.module
    loop.model = loop.call = None
    again = Loop("second", inner)
    return again.run()


def attached_again():
    loop = Loop("once")
    with loop.monitor:
        loop.step(0)
    loop.monitor = unisono.attach(loop.model, loop.optimizer, guard=loop.guard, run_dir=run_dir("once"))
    return loop.run()


def two_forwards():
    """Statistics go back to what they were before the first of them."""
    model = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    loop = Loop("forwards", model)
    with loop.monitor:
        for number in range(STEPS):
            loop.optimizer.zero_grad()
            seen = int(model[1].num_batches_tracked)
            first = loop.loss(NAN_ON_ONE(number))
            (first + loop.loss()).backward()
            loop.optimizer.step()
            if number == BAD:
                kept = int(model[1].num_batches_tracked) == seen
    return loop.result(kept=kept)


def told_afterwards():
    loop = Loop("afterwards")
    with loop.monitor:
        for number in range(STEPS):
            loop.step(number)
            loop.monitor.record_loss(math.nan if number == BAD else 1.0)
    return loop.result()


def healed_by_steering():
    """The bad worker counts nothing: there is no need to skip."""
    return Loop("healed", weighting=AgreementFilter(max_distance=2.0)).run()


JOBS = {
    "compiled": compiled_and_looked_at,
    "unwrapped": unwrapped_first,
    "through": through_another_model,
    "more": more_than_the_model,
    "late": late_with_a_second_optimizer,
    "later": another_optimizer_later,
    "fits": does_not_fit_on_one,
    "wrapped-again": wrapped_again,
    "attached-again": attached_again,
    "forwards": two_forwards,
    "afterwards": told_afterwards,
    "healed": healed_by_steering,
    "refuse-twice": lambda: raised(twice_in_a_step),
    "refuse-without": lambda: raised(without_a_torch_optimizer),
    "refuse-inside": lambda: raised(inside_backward),
}

if __name__ == "__main__":
    with process_group():
        for job in sys.argv[1:]:
            say(job, JOBS[job]())
