"""A worker under the guard, on one thread of a fleet: what hooks do elsewhere is done by hand here."""

import copy
import json
import math
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from unisono.act.checkpoints import MemoryStore
from unisono.act.guard.decider import Decider
from unisono.act.guard.decision_log import DecisionLog
from unisono.act.guard.decision_round import DecisionRound
from unisono.act.guard.executor import Executor
from unisono.act.guard.guarded_state import GuardedState
from unisono.act.guard.reporter import Reporter
from unisono.exchange.collectives import GuardCollectives

CPU = torch.device("cpu")
FIRST_RANK = 4
"""The launcher's number of the first worker: workers are told by these, not by their place."""

TEMPLATE = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))


class HaltedError(RuntimeError):
    """In place of the end of the process."""


class GuardedWorker:
    def __init__(self, fleet, rank, options, findings=lambda: ()):
        self.rank, self.step, self.lines, self.written = rank, 0, [], []
        self.model = copy.deepcopy(TEMPLATE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.parameters = list(self.model.parameters())
        self.collectives = GuardCollectives(fleet.group, CPU)
        self.ranks = [FIRST_RANK + worker for worker in range(fleet.world)]
        wrapper = SimpleNamespace(named_parameters=self.model.named_parameters)
        state = GuardedState(wrapper, self.model, [self.optimizer], [])
        kept, policy = options.checkpoints, options.policy()
        self.store = None if kept is None else MemoryStore(kept.keep, kept.quiet)
        self.executor = Executor(
            self.collectives,
            self.ranks,
            state,
            self.store,
            1 if kept is None else kept.every,
            policy.callbacks(),
            self._halt,
            self.lines.append,
            0 if options.resync_from == "first" else None,
        )
        self.decider = Decider(self.ranks, options, policy, findings)
        self.log = DecisionLog(1)
        self.round = DecisionRound(
            self.collectives, state, self.executor, self.decider, self.log, self._reporter(), may_be_late=False
        )
        self._generator = torch.Generator().manual_seed(rank)

    def _reporter(self):
        log = SimpleNamespace(attempt=1, write_at_once=lambda record, grave=True: self.written.append(record))
        console = SimpleNamespace(say=self.lines.append, complain=self.lines.append)
        return Reporter(log if self.rank == 0 else None, console, lambda: self.step)

    def _halt(self):
        self.collectives.wait_for_all()
        raise HaltedError

    def backward(self, factor=1.0):
        """A pass with its all-reduce, up to where the workers decide."""
        self.executor.skipped = False
        self.optimizer.zero_grad()
        self.executor.skipping.let_speak(self.parameters)
        self.executor.buffers.remember(self.model)
        loss = factor * self.model(torch.randn(8, 4, generator=self._generator)).square().mean()
        self.round.own.pass_begins((loss,), None)
        loss.backward()
        self.round.own.pass_was_ours()
        for parameter in self.parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.collectives.world

    def train(self, step, factor=1.0):
        """One step; whether the guard has left it out."""
        self.step = step
        self.backward(factor)
        self.round.hold(0)
        self.executor.skipping.optimizer_begins(self.parameters, self.optimizer)
        self.optimizer.step()
        self.executor.skipping.optimizer_stepped(self.optimizer)
        self.round.own.step_over()
        self.executor.step_over(step, said=True)
        return self.executor.skipped

    @property
    def actions(self):
        return [(record.step, record.action) for record in self.log.decisions]

    def told(self):
        """What has to be the same on every worker."""
        return json.dumps([[self.log.chain], [str(record) for record in self.log.decisions]])

    def momentum(self):
        found = [self.optimizer.state[one].get("momentum_buffer") for one in self.parameters]
        return [one for one in found if one is not None]

    def norm(self):
        """Of the averaged gradient."""
        return math.sqrt(sum(float(one.grad.square().sum()) for one in self.parameters))

    def bits(self):
        """Of weights, buffers and momentum."""
        tensors = [*self.model.state_dict().values(), *self.momentum()]
        return b"".join(one.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for one in tensors)
