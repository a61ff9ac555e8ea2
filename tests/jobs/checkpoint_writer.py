"""Writes checkpoints until it is killed. Each line of its input starts a child that goes on in the same folder."""

import itertools
import os
import sys
from pathlib import Path

import torch

from unisono.act.checkpoints import DiskStore, Subject, capture, files

LAYERS = 6


def write_on(folder, attempt, *, steps=None):
    """Says each step whose checkpoint is healthy on the disk."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(LAYERS)))
    # Without an optimizer: torch takes seconds to import what those need.
    subject = Subject(model, [])
    store = DiskStore(folder, 0, True, "replica-0.pt", keep=2, quiet=0, world=1, attempt=attempt)
    for step in itertools.islice(itertools.count(max(files.steps_in(folder), default=0) + 1), steps):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        store.keep(capture(subject, step))
        store.wait(60)
        store.quiet(step)
        store.agreed(step)
        store.wait(60)
        say(f"failed {store.error!r}" if store.failures else f"step {step}")
    store.close()


def say(line):
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main(folder):
    """Children are forked after torch has imported all it needs, which takes seconds."""
    torch.set_num_threads(1)
    write_on(folder, 0, steps=4)
    for attempt, _ in enumerate(sys.stdin, start=1):
        child = os.fork()
        if child == 0:
            write_on(folder, attempt)
            os._exit(1)
        say(f"child {child}")
        os.waitpid(child, 0)
        say("ended")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
