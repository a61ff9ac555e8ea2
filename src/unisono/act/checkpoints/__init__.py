"""What a worker is made of, kept in memory or on disk, to go back to."""

from unisono.act.checkpoints.disk_store import DiskStore
from unisono.act.checkpoints.plain_files import CheckpointError
from unisono.act.checkpoints.restart import find_healthy, load
from unisono.act.checkpoints.snapshot import Snapshot, Subject, capture, check_fits, check_states, put_back
from unisono.act.checkpoints.store import CheckpointStore, MemoryStore, UserStore

__all__ = [
    "CheckpointError",
    "CheckpointStore",
    "DiskStore",
    "MemoryStore",
    "Snapshot",
    "Subject",
    "UserStore",
    "capture",
    "check_fits",
    "check_states",
    "find_healthy",
    "load",
    "put_back",
]
