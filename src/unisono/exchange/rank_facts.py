"""What a rank registers with: where it runs, and what should be the same on every rank."""

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
from unisono.exchange.processes import own_process
from unisono.listen.gradient_reader import GradientReader
from unisono.listen.models.wrapper import Wrapper


def own_facts(rank: int, reader: GradientReader) -> dict[str, Any]:
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process": own_process(),
        "device": str(reader.device),
        "unisono": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "groups": reader.group_names,
        "parameters": reader.total,
        "sketch_length": reader.layout.length,
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


def compared_model(reader: GradientReader, wrapper: Wrapper) -> dict[str, str]:
    named = zip(reader.names, reader.parameters, strict=True)
    structure = repr([(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in named])
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in reader.parameters})
    return {
        "parameters": str(reader.total),
        "structure": hashlib.blake2b(structure.encode(), digest_size=8).hexdigest(),
        "dtype": ", ".join(dtypes),
        **wrapper.facts(),
    }
