"""What a worker is made of, kept in memory or on disk, to go back to."""

from unisono.checkpoints.disk_shelf import DiskShelf
from unisono.checkpoints.problem import CheckpointError
from unisono.checkpoints.restart import find_healthy, load
from unisono.checkpoints.shelf import MemoryShelf, OwnShelf, Shelf
from unisono.checkpoints.snapshot import Snapshot, Subject, capture, check_fits, check_states, put_back

__all__ = [
    "CheckpointError",
    "DiskShelf",
    "MemoryShelf",
    "OwnShelf",
    "Shelf",
    "Snapshot",
    "Subject",
    "capture",
    "check_fits",
    "check_states",
    "find_healthy",
    "load",
    "put_back",
]
