"""The random streams of this process, as they stand."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch

Snapshot = dict[str, Any]


def snapshot(device: torch.device) -> Snapshot:
    """Copies of the states; microseconds each, hashed elsewhere."""
    states: Snapshot = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = numpy.random.get_state()
    return states


def consumed(before: Snapshot, after: Snapshot) -> dict[str, str]:
    """The streams that were drawn from in between, each with the digest of its state before."""
    digests = {name: (digest(state), digest(after[name])) for name, state in before.items() if name in after}
    return {name: first for name, (first, then) in digests.items() if first != then}


def digest(state: Any) -> str:
    content = bytes(state.tolist()) if isinstance(state, torch.Tensor) else repr(_plain(state)).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _plain(state: Any) -> Any:
    """numpy shortens long arrays when they are shown."""
    return [part.tolist() if hasattr(part, "tolist") else part for part in state]
