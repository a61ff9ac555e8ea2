"""Micro-batches of one process as virtual workers: the same weightings, over their gradients.

The folder is not called `microbatches`: importing it would hide the function `unisono.microbatches` behind a module.
"""

from unisono.act.microbatching.workers import VirtualWorkers, microbatches

__all__ = ["VirtualWorkers", "microbatches"]
