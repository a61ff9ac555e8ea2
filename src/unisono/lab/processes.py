"""One rank of a job in the lab: how it joins the others, and how it leaves them."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

RESTS = 0.2


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    """The models have to be gone before the group: gloo's tear-down deadlocks otherwise."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    yield
    dist.barrier()
    gc.collect()
    time.sleep(RESTS)
    dist.destroy_process_group()


def say_progress(done: int, total: int) -> None:
    if dist.get_rank() == 0:
        sys.stdout.write(f"{done}/{total}\n")
        sys.stdout.flush()
