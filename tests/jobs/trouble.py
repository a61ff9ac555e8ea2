"""Training that meets trouble: a rank without unisono, a late or dying one, a signal, a restart."""

import contextlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from common import batch, digest, optimizer_for, process_group, say, wrapped
from torch.nn.functional import cross_entropy

import unisono
from unisono.exchange import gloo_channel
from unisono.exchange import store as message_store
from unisono.exchange import thread as exchange
from unisono.measure import rank0

RUN = os.path.join(os.environ["RESULTS"], "run")


def steps(model, optimizer, count, pause=0.0):
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(count):
        inputs, labels = batch("perceptron", generator)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        time.sleep(pause)
        yield step


def attached(**options):
    model = wrapped("perceptron")
    optimizer = optimizer_for("sgd", model)
    return model, optimizer, unisono.attach(model, optimizer, run_dir=RUN, **options)


def forgotten():
    """Rank 1 never calls attach; patience is shortened so that the test is quick."""
    message_store.REGISTRATION_PATIENCE = rank0.REGISTRATION_PATIENCE = 1.0
    model = wrapped("perceptron")
    optimizer = optimizer_for("sgd", model)
    monitor = unisono.attach(model, optimizer, run_dir=RUN) if dist.get_rank() != 1 else contextlib.nullcontext()
    with monitor:
        for _ in steps(model, optimizer, 60, pause=0.05):
            pass
    group = dist.new_group()  # the user's own groups still work
    dist.barrier(group)
    say("weights", digest(model))


def forgotten_in_a_group():
    """Ranks 2 and 3 train a model of their own, and rank 3 never calls attach."""
    message_store.REGISTRATION_PATIENCE = rank0.REGISTRATION_PATIENCE = 1.0
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = wrapped("perceptron", process_group=pairs[dist.get_rank() // 2])
    optimizer = optimizer_for("sgd", model)
    monitor = unisono.attach(model, optimizer, run_dir=RUN) if dist.get_rank() == 2 else contextlib.nullcontext()
    with monitor:
        for _ in steps(model, optimizer, 40, pause=0.05):
            pass


def stuck():
    """Rank 1's listening thread stands still long enough for the side channel to be given up, then goes on."""
    gloo_channel.PATIENCE = 1.0
    model, optimizer, monitor = attached()
    original, slept = exchange.ExchangeThread._turn, []

    def turn(self):
        original(self)
        if dist.get_rank() == 1 and not slept and self.message_store.sent > 3:
            slept.append(True)
            time.sleep(3.0)

    exchange.ExchangeThread._turn = turn
    with monitor:
        for _ in steps(model, optimizer, 200, pause=0.05):
            pass
    say("slept", len(slept))


def skips_one():
    """Rank 1 once leaves its turn out: the others' sketches would be mixed up for ever."""
    gloo_channel.PATIENCE = 1.0
    model, optimizer, monitor = attached()
    channel_send, skipped = gloo_channel.GlooChannel.send, []

    def send(self, payload):
        if dist.get_rank() == 1 and payload.step == 20 and not skipped:
            skipped.append(True)
            return
        channel_send(self, payload)

    gloo_channel.GlooChannel.send = send
    with monitor:
        for _ in steps(model, optimizer, 160, pause=0.05):
            pass
    say("skipped", len(skipped))


def terminated():
    """Rank 0 sends SIGTERM to itself while rank 1 waits in all-reduce."""
    model, optimizer, _ = attached()
    for step in steps(model, optimizer, 400, pause=0.01):
        if step == 50 and dist.get_rank() == 0:
            time.sleep(0.5)
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(30)


def crashes():
    model, optimizer, _ = attached()
    for step in steps(model, optimizer, 100, pause=0.01):
        if step == 30 and dist.get_rank() == 1:
            time.sleep(0.3)
            raise RuntimeError("as planned")


def restarts():
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    model, optimizer, monitor = attached(first_step=0 if first else 20)
    with monitor:
        for step in steps(model, optimizer, 40, pause=0.01):
            if first and step == 30 and dist.get_rank() == 1:
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)


def suspicion():
    """Rank 1's loss is NaN once, while only every 100th step is heard."""
    model, optimizer, monitor = attached(schedule=unisono.every(100))
    generator = torch.Generator().manual_seed(dist.get_rank())
    with monitor:
        for step in range(220):
            inputs, labels = batch("perceptron", generator)
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            monitor.record_loss(loss * float("nan") if step == 10 and dist.get_rank() == 1 else loss)
            loss.backward()
            optimizer.step()
            time.sleep(0.03)


def no_network():
    """Gloo is told to use an interface that does not exist, after training's own group was made."""
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
    model, optimizer, monitor = attached()
    with monitor:
        for _ in steps(model, optimizer, 40, pause=0.02):
            pass


def leaves_early():
    """Rank 0 ends while rank 1 is late with a step: gloo's destructor would wait for rank 1's part of the reading."""
    model, optimizer, _ = attached()
    for _ in steps(model, optimizer, 20):
        pass
    inputs, labels = batch("perceptron", torch.Generator())
    cross_entropy(model(inputs), labels).backward()
    if dist.get_rank() == 1:
        time.sleep(40)
    optimizer.step()
    time.sleep(0.3)
    sys.exit(3)


def hurried():
    """Steps so short that announcements are read many steps later."""
    model, optimizer, monitor = attached(schedule=unisono.every(1).until(100).then(unisono.within_budget(0.02)))
    with monitor:
        for _ in steps(model, optimizer, 2500):
            pass


def sub_groups():
    """Two pairs of ranks, each with a model of its own, and a third model over all."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[dist.get_rank() // 2]
    os.environ["UNISONO_RUN_DIR"] = RUN
    torch.manual_seed(0)
    small, large = wrapped("perceptron", process_group=mine), wrapped("perceptron")
    small_optimizer, large_optimizer = optimizer_for("sgd", small), optimizer_for("sgd", large)
    with unisono.attach(small, small_optimizer), unisono.attach(large, large_optimizer):
        for _ in zip(steps(small, small_optimizer, 12), steps(large, large_optimizer, 12), strict=True):
            pass


if __name__ == "__main__":
    with process_group():
        globals()[sys.argv[1]]()
