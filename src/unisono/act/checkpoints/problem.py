"""The one error of checkpoints."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint cannot be taken, kept or used. Nothing has been changed by the attempt to use it."""
