"""Training with a guard, as real processes: what is skipped, clipped, repaired or rolled back, and on which ranks."""

import copy
import math
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from common import batch, digest, process_group, raised, say, wrapped
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy

import unisono
from unisono.act.guard import device_round
from unisono.exchange.collectives import GuardCollectives
from unisono.monitor import guard_setup as setting_up
from unisono.policy import Row

STEPS, BAD = 30, 24
APART = (4, 9, 14, 19, BAD)
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.1, foreach=False),
    "momentum-foreach": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, foreach=True),
    "momentum-fused": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9, fused=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-3, foreach=False),
    "adam-foreach": lambda parameters: torch.optim.Adam(parameters, 1e-3, foreach=True),
    "adam-fused": lambda parameters: torch.optim.Adam(parameters, 1e-3, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-3, weight_decay=0.1),
    "adamw-amsgrad": lambda parameters: torch.optim.AdamW(parameters, 1e-3, amsgrad=True, foreach=True),
}


def run_dir(name):
    return os.path.join(os.environ["RESULTS"], name)


def state_print(optimizer):
    """All of the optimizer's memory, bit for bit."""
    state = optimizer.state_dict()
    return repr(
        [
            (key, name, value.tolist() if torch.is_tensor(value) else value)
            for key, entries in state["state"].items()
            for name, value in sorted(entries.items())
        ]
    )


def told(monitor):
    return [[one.step, one.action, list(one.ranks), one.reason, one.digest] for one in monitor.decisions]


def scaled_gradients(model, factor):
    """As a worker whose computation goes wrong: before all-reduce."""
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * factor[0])


class Training:
    """A loop with a fault: `factor(step)` multiplies this rank's own gradients."""

    def __init__(self, name, optimizer="momentum", guard=None, factor=None, kind="perceptron", scaler=None, seed=0):
        self.kind, self.factor = kind, factor or (lambda step: 1.0)
        self.model = wrapped(kind, seed)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scaler = scaler
        self.monitor = unisono.attach(self.model, self.optimizer, guard=guard, run_dir=run_dir(name))
        self.generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
        self.multiplier = [1.0]
        scaled_gradients(self.model, self.multiplier)
        self.prints, self.states, self.losses = [], [], []

    def loss(self, spoil=False):
        inputs, labels = batch(self.kind, self.generator)
        return cross_entropy(self.model(inputs * math.nan if spoil else inputs), labels)

    def backward(self):
        loss = self.loss()
        loss.backward()
        return loss

    def step(self, number, clip=None, spoil=False):
        self.multiplier[0] = self.factor(number)
        self.optimizer.zero_grad()
        loss = self.loss(spoil)
        if self.scaler is None:
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.losses.append(loss.item())
        self.prints.append(digest(self.model.module))
        self.states.append(state_print(self.optimizer))

    def run(self, steps=STEPS):
        with self.monitor:
            for number in range(steps):
                self.step(number)
        return self.result()

    def result(self):
        finite = all(bool(parameter.isfinite().all()) for parameter in self.model.parameters())
        weights = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()]).tolist()
        return {"prints": self.prints, "finite": finite, "weights": weights, "decisions": told(self.monitor)}


def at(step, value, rank=2):
    return lambda number: value if number == step and dist.get_rank() == rank else 1.0


def skipping(optimizer, value, scaler=None):
    training = Training(f"skip-{optimizer}-{value}", optimizer, unisono.guard(), at(BAD, value), scaler=scaler)
    found = training.run()
    return {
        **found,
        "weights_kept": found["prints"][BAD] == found["prints"][BAD - 1],
        "weights_moved": found["prints"][BAD - 1] != found["prints"][BAD - 2]
        and found["prints"][-1] != found["prints"][BAD],
        "state_kept": training.states[BAD] == training.states[BAD - 1],
    }


def late(optimizer, value):
    """As on a GPU with NCCL, where nobody waits for the others' words; the same code on the CPU."""
    setting_up.is_possible = lambda collectives, device: True
    found = skipping(optimizer, value)
    setting_up.is_possible = device_round.is_possible
    return found


def late_and_back():
    setting_up.is_possible = lambda collectives, device: True
    guard = unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(every=5, quiet=3))
    found = Training("late-back", "adam-fused", guard, at(BAD, 1e9)).run()
    setting_up.is_possible = device_round.is_possible
    return found


def poisoned(guard):
    """Bad batches of one worker, more of them than there are roll-backs in the budget."""

    def factor(number):
        return math.nan if number in APART and dist.get_rank() == 2 else 1.0

    return Training(f"poisoned-{guard is not None}", "adamw", guard, factor).run()


def persistent():
    """Ends with the guard's own exit code, on every rank, at the fourth bad step."""
    guard = unisono.guard(halt=["UN602"])
    Training("persistent", "adamw", guard, lambda step: math.nan if step >= BAD else 1.0).run(BAD + 10)


def dry():
    guard = unisono.guard(dry_run=True, rollback=True, checkpoints=unisono.Checkpoints(every=5, quiet=2))
    guarded = Training("dry", "adamw", guard, at(BAD, 1e6)).run()
    plain = Training("dry-plain", "adamw", None, at(BAD, 1e6)).run()
    return {**guarded, "as_without": guarded["prints"] == plain["prints"]}


def clipping():
    """Against the same clipping by hand."""
    limit = 0.3
    guarded = Training("clip", "momentum", unisono.guard(clip=limit)).run()
    by_hand = Training("clip-by-hand", "momentum")
    with by_hand.monitor:
        for number in range(STEPS):
            by_hand.step(number, clip=limit)
    apart = torch.tensor(guarded["weights"]) - torch.tensor(by_hand.result()["weights"])
    return {**guarded, "apart": apart.abs().max().item()}


def nudge(tensor):
    """Each number by one unit in the last place."""
    tensor.detach().copy_(torch.nextafter(tensor.detach(), torch.tensor(math.inf)))


def damaged(training, kind, before):
    """On rank 1 alone, as a bug or a bad memory would."""
    if dist.get_rank() != 1:
        return
    if kind in ("drift", "lasting"):
        nudge(next(training.model.parameters()))
    elif kind == "stale":
        training.model.module.load_state_dict(before)
    else:
        state = training.optimizer.state[next(training.model.parameters())]
        state["exp_avg"].mul_(1.001)


def resynced(kind, resync, pause=0.0):
    training = Training(f"resync-{kind}-{resync}", "adamw", unisono.guard(resync=resync))
    equal = []
    with training.monitor:
        before = copy.deepcopy(training.model.module.state_dict())
        for number in range(60 if pause else 35):
            training.step(number)
            if number == 12 or (number > 12 and kind == "lasting"):
                damaged(training, kind, before)
            equal.append(same_everywhere(digest(training.model.module) + training.states[-1]))
            time.sleep(pause)
    return {
        "equal": equal,
        "decisions": told(training.monitor),
        "outcomes": [one.outcome for one in training.monitor.decisions],
    }


def same_everywhere(text):
    texts = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return len(set(texts)) == 1


def own_rows():
    """A policy in plain Python: at step 5 the momentum goes, at step 8 a function is called on every rank."""
    calls = []
    rows = [
        Row("fifth", lambda now: "step 5" if now.step == 5 else None, ("reset-momentum", "skip")),
        Row("eighth", lambda now: "step 8" if now.step == 8 else None, lambda decision: calls.append(decision.step)),
        Row("broken", lambda now: 1 / 0, "halt"),
    ]
    training = Training("own-rows", "momentum", unisono.guard(rows=rows))
    found = training.run(12)
    return {
        **found,
        "calls": calls,
        "emptied": training.states[5] == "[]",
        "kept": found["prints"][5] == found["prints"][4],
    }


def reseeded():
    rows = [Row("third", lambda now: "step 3" if now.step == 3 else None, "reseed")]
    training = Training("reseed", "sgd", unisono.guard(rows=rows))
    torch.manual_seed(0)
    before = torch.rand(()).item()
    found = training.run(6)
    return {**found, "before": before, "after": torch.rand(()).item()}


def closed_by_one():
    """One rank stops listening: all stop guarding, and training goes on."""
    training = Training("closed", "sgd", unisono.guard(), at(9, math.nan))
    for number in range(12):
        if number == 6 and dist.get_rank() == 1:
            training.monitor.close()
        training.step(number)
    training.monitor.close()
    return training.result()


def accumulated():
    """Two backward passes a step, the first without all-reduce: bad in the first one."""
    training = Training("accumulated", "adamw", unisono.guard())
    with training.monitor:
        for number in range(STEPS):
            training.multiplier[0] = at(BAD, math.nan)(number)
            training.optimizer.zero_grad()
            with training.model.no_sync():
                training.backward()
            training.multiplier[0] = 1.0
            training.backward()
            training.optimizer.step()
            training.prints.append(digest(training.model.module))
    found = training.result()
    return {**found, "kept": found["prints"][BAD] == found["prints"][BAD - 1]}


def given_up_by_the_script():
    """The script finds the NaN itself, does not step and drops the gradients: the next step is its own."""
    training = Training("given-up", "sgd", unisono.guard(budget=False), at(BAD, math.nan))
    with training.monitor:
        for number in range(STEPS):
            training.multiplier[0] = training.factor(number)
            training.backward()
            if number != BAD:
                training.optimizer.step()
            for parameter in training.model.parameters():
                parameter.grad = None
            training.prints.append(digest(training.model.module))
    found = training.result()
    return {**found, "moved_on": len(set(found["prints"])) == STEPS - 1}


def closure():
    training = Training("closure", "adamw", unisono.guard(), at(BAD, math.nan))

    def evaluate():
        training.optimizer.zero_grad()
        return training.backward()

    with training.monitor:
        for number in range(STEPS):
            training.multiplier[0] = training.factor(number)
            training.optimizer.step(evaluate)
            training.prints.append(digest(training.model.module))
    found = training.result()
    return {
        **found,
        "kept": found["prints"][BAD] == found["prints"][BAD - 1],
        "moved": len(set(found["prints"])) == STEPS - 1,
    }


def statistics():
    """Batch norms that saw the bad batch forget it."""
    training = Training("statistics", "sgd", unisono.guard(), kind="convolutional")
    with training.monitor:
        for number in range(STEPS):
            training.step(number, spoil=number == BAD and dist.get_rank() == 0)
    return {**training.result(), "finite_buffers": all(bool(one.isfinite().all()) for one in training.model.buffers())}


def dying(method):
    """Rank 1 is killed in the middle of a round."""
    training = Training("dying", "adamw", unisono.guard())
    if dist.get_rank() == 1:
        original, calls = getattr(GuardCollectives, method), []

        def dies(self, *args):
            calls.append(1)
            if len(calls) == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *args)

        setattr(GuardCollectives, method, dies)
    training.run()


def lbfgs():
    model = wrapped("perceptron")
    unisono.attach(model, torch.optim.LBFGS(model.parameters()), guard=unisono.guard())


def joining():
    training = Training("joining", "sgd", unisono.guard())
    with Join([training.model]):
        training.step(0)


def different():
    Training("different", "sgd", unisono.guard(budget=3 + dist.get_rank()))


def twice():
    training = Training("twice", "sgd", unisono.guard())
    unisono.attach(training.model, guard=unisono.guard())


JOBS = {
    **{f"skip-{name}": lambda name=name: skipping(name, math.nan) for name in OPTIMIZERS},
    "skip-extreme": lambda: skipping("adamw", 1e6),
    "skip-scaled": lambda: skipping("adam", 1e6, torch.amp.GradScaler("cpu", init_scale=256.0)),
    "scaler-skips": lambda: skipping("adam", math.inf, torch.amp.GradScaler("cpu", init_scale=256.0)),
    "late-nan": lambda: late("adam-fused", math.nan),
    "late-extreme": lambda: late("momentum-fused", 1e6),
    "late-not-possible": lambda: late("adam", math.nan),
    "late-back": late_and_back,
    "poisoned": lambda: poisoned(None),
    "saved": lambda: poisoned(unisono.guard()),
    "persistent": persistent,
    "dry": dry,
    "clip": clipping,
    **{f"resync-{kind}": lambda kind=kind: resynced(kind, 5) for kind in ("drift", "lasting", "stale", "state")},
    "resync-on-finding": lambda: resynced("drift", True, pause=0.02),
    "own-rows": own_rows,
    "reseed": reseeded,
    "closed-by-one": closed_by_one,
    "accumulated": accumulated,
    "given-up": given_up_by_the_script,
    "closure": closure,
    "statistics": statistics,
    "dying-before": lambda: dying("_gather"),
    "dying-between": lambda: dying("_broadcast"),
    "refuse-lbfgs": lambda: raised(lbfgs),
    "refuse-join": lambda: raised(joining),
    "refuse-different": lambda: raised(different),
    "refuse-twice": lambda: raised(twice),
}

if __name__ == "__main__":
    with process_group():
        for job in sys.argv[1:]:
            say(job, JOBS[job]())
