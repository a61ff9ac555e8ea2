"""A process group of one rank: DistributedDataParallel in a test without a launcher."""

import gc
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        # A wrapped model that outlives its group can hang.
        gc.collect()
        dist.destroy_process_group()
