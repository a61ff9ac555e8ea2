"""Thousands of the guard's rounds between real processes: ranks that are late, contradict, or at a limit."""

import math
import random
import sys
import time

import torch
import torch.distributed as dist
from common import process_group, say

import unisono
from unisono.act.guard.decider import Decider
from unisono.act.guard.decision_log import DecisionLog
from unisono.act.guard.policy import Decision
from unisono.exchange.collectives import GuardCollectives
from unisono.exchange.guard_messages import RankReport

USUAL = 30
"""Rounds from which the workers know what is usual."""


class Worker:
    def __init__(self, options):
        self.collectives = GuardCollectives(dist.group.WORLD, torch.device("cpu"))
        self.decision_log = DecisionLog(1)
        self.decider = Decider(range(self.collectives.world), options, options.policy(), lambda: ())
        self.done = []

    def hold(self, step, loss, square, finite=True):
        report = RankReport(
            step, loss, finite, square, False, False, self.decision_log.chain, may_be_late=False, held=()
        )
        result = self.collectives.hold(report, lambda reports: self.decider.consider(reports, 0))
        if result.decision:
            decision = Decision.from_json(result.decision.decode())
            self.decision_log.enter(decision, result.decision)
            self.done.append([decision.step, *decision.actions])
        return result

    def result(self, rounds):
        return {"rounds": rounds, "done": self.done, "chain": self.decision_log.chain}


def late_and_contradicting(rounds):
    """Each worker says what it likes, and some come late."""
    worker = Worker(unisono.guard(budget=False, reset_momentum=True, clip=2.0))
    chance = random.Random(dist.get_rank())
    for step in range(rounds):
        if chance.random() < 0.002:
            time.sleep(chance.random() * 0.02)
        bad = chance.random() < 0.2
        loss = chance.choice([math.nan, math.inf, 1e9, 1.0]) if bad else 1.0 + 0.1 * chance.random()
        worker.hold(step, loss, chance.choice([1.0, 1e8, math.nan]) if bad else 1.0, finite=not bad)
    return worker.result(rounds)


def at_the_limit(rounds):
    """Each worker's number lies one unit in the last place below or above the limit, another one for each worker."""
    worker = Worker(unisono.guard(budget=False, norm_spike=10.0))
    world = worker.collectives.world
    for step in range(USUAL):
        worker.hold(step, 1.0, 1.0 / world)
    limit = limit_of(worker, world)
    for watch in worker.decider._watches.values():
        # The limit stays where it is.
        watch.learn = lambda situation, spike: None
    chance = random.Random(100 + dist.get_rank())
    for step in range(USUAL, USUAL + rounds):
        towards = math.inf if chance.random() < 0.5 else 0.0
        worker.hold(step, 1.0, math.nextafter(limit, towards))
    return worker.result(rounds)


def limit_of(worker, world):
    """The share at which the whole norm is extreme, found where it is known and told to all."""
    low, high = 1.0, 1e6
    if worker.collectives.is_first:
        while math.nextafter(low, high) < high:
            middle = (low + high) / 2
            watch = worker.decider._watches[0]
            now = watch.situation(0, [1.0] * world, [True] * world, math.sqrt(middle * world))
            low, high = (low, middle) if worker.decider._options.spike(now) else (middle, high)
    return worker.collectives.tell({"limit": low})["limit"]


JOBS = {"late": late_and_contradicting, "limit": at_the_limit}

if __name__ == "__main__":
    with process_group():
        for job in sys.argv[1:]:
            name, rounds = job.split(":")
            say(name, JOBS[name](int(rounds)))
