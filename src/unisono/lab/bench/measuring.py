"""All of the bench, one part after the other."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unisono import __version__
from unisono.common.errors import UserError
from unisono.lab.bench import reading_cost
from unisono.lab.bench.models import shape_for
from unisono.lab.bench.request import BenchRequest
from unisono.lab.bench.timing import Stopwatch
from unisono.lab.launching import follow, torchrun
from unisono.sketch import native

JOB = Path(__file__).with_name("job.py")
BYTES_A_PARAMETER = {"cpu": 20, "cuda": 12}
"""Weights, gradients, DDP's buckets and AdamW's state: in float32 on CPU, in bfloat16 on a GPU."""

SHARED_GPU_PARAMETERS = 10_000_000


def check(request: BenchRequest) -> None:
    """Raises `UserError` for what this machine cannot do."""
    if request.device == "cuda" and not torch.cuda.is_available():
        raise UserError("`--device cuda` needs a GPU that torch can use. Found none. Write: --device cpu")
    needed = request.workers * request.parameters * BYTES_A_PARAMETER[request.device]
    free = reading_cost.free_bytes(torch.device(request.device))
    if needed > free:
        raise UserError(
            f"`--parameters` should fit into memory: {request.workers} workers need about {needed / 1e9:,.1f} GB. "
            f"Found {free / 1e9:,.1f} GB free. Choose fewer, as in: --parameters 10M"
        )


def measure(request: BenchRequest, say: Callable[[str], None]) -> dict[str, Any]:
    """:param say: told what is measured next."""
    found: dict[str, Any] = {"machine": machine(request.device)}
    say("reads of buffers and of a model's gradients")
    found["buffers"], found["model"] = reads(request)
    for one in _trainings(request):
        found |= _trained(one)
    return found


def machine(device: str) -> dict[str, Any]:
    return {
        "unisono": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "cores": os.cpu_count() or 1,
        "compiled": native.available(),
    }


def reads(request: BenchRequest) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows for buffers, and for the gradients of a model; on a CPU with one thread and with all."""
    device = torch.device(request.device, *([torch.cuda.current_device()] if request.device == "cuda" else []))
    stopwatch, shape = Stopwatch(device, request.seconds), shape_for(request.parameters)
    dtypes = [torch.float32, torch.bfloat16, *([torch.float16] if device.type == "cuda" else [])]
    buffers, models = [], []
    for threads in _numbers_of_threads(device):
        torch.set_num_threads(threads)
        rows = reading_cost.of_buffers(request.sizes, dtypes, stopwatch)
        buffers += [row | {"threads": threads} for row in rows]
        models += [reading_cost.of_model(shape, dtype, stopwatch) | {"threads": threads} for dtype in dtypes]
    if device.type == "cuda":
        # The processes that train next share the GPU with this one.
        del stopwatch
        torch.cuda.empty_cache()
    return buffers, models


def _numbers_of_threads(device: torch.device) -> list[int]:
    return [1] if device.type == "cuda" else sorted({1, torch.get_num_threads()})


def _trainings(request: BenchRequest) -> list[BenchRequest]:
    """Steering needs two workers. Where they share a GPU, gloo takes seconds for the gradients of a large model."""
    if request.workers > 1:
        return [request]
    routes = replace(request, parts=("routes",), workers=2, steps=min(request.steps, 5))
    on_gpu = request.device == "cuda"
    routes = replace(routes, parameters=min(request.parameters, SHARED_GPU_PARAMETERS)) if on_gpu else routes
    return [replace(request, parts=("step",)), routes]


def _trained(request: BenchRequest) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        follow(torchrun(request.workers, JOB, request.as_line(), str(result)), "measuring")
        found = json.loads(result.read_text())
    backend = found.pop("backend")
    return {part: _with(rows, backend) for part, rows in found.items()}


def _with(rows: Any, backend: str) -> Any:
    return [row | {"backend": backend} for row in rows] if isinstance(rows, list) else rows | {"backend": backend}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
