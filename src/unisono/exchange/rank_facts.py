"""How a rank introduces itself: where it runs, and what should be the same on every rank."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import sys
from typing import Any

import torch
import torch.distributed as dist

from unisono import __version__
from unisono.listen.gradient_reader import GradientReader
from unisono.listen.models.wrapper import Wrapper


def own_facts(rank: int, probe: GradientReader) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "device": str(probe.device),
        "unisono": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "groups": probe.group_names,
        "parameters": probe.total,
        "sketch_length": probe.layout.length,
    }


def compared_settings(schedule: object, world: int) -> dict[str, str]:
    """What should be the same on every rank."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "numpy": str(getattr(numpy, "__version__", "none")),
        "unisono": __version__,
        "schedule": str(schedule),
        "world": str(world),
        "job": str(dist.get_world_size() if world > 1 else 1),
    }


def compared_model(probe: GradientReader, wrapper: Wrapper) -> dict[str, str]:
    named = zip(probe.names, probe.parameters, strict=True)
    structure = repr([(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in named])
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in probe.parameters})
    return {
        "parameters": str(probe.total),
        "structure": hashlib.blake2b(structure.encode(), digest_size=8).hexdigest(),
        "dtype": ", ".join(dtypes),
        **wrapper.facts(),
    }
