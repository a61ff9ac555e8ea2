"""One rank of a training whose cost is measured: `job.py REQUEST RESULT`, started by `torch.distributed.run`."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unisono.lab.bench.models import Shape, Transformer, loss_of, shape_for
from unisono.lab.bench.request import BenchRequest
from unisono.lab.bench.step_cost import ROUTES, route_cost, step_cost
from unisono.lab.bench.training import Trainee

RESTS = 0.2


def main(line: str, result: Path) -> None:
    request = BenchRequest.from_line(line)
    with process_group(request) as device:
        # Beside the result, in a folder that goes with whoever started us, however this ends.
        measured = {part: PARTS[part](request, device, result.parent) for part in request.parts}
        if dist.get_rank() == 0:
            result.write_text(json.dumps({"backend": dist.get_backend(), **measured}))


@contextlib.contextmanager
def process_group(request: BenchRequest) -> Iterator[torch.device]:
    """The models have to be gone before the group: gloo's tear-down deadlocks otherwise."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // request.workers))
    device = torch.device("cpu")
    if request.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend_for(request))
    yield device
    dist.barrier()
    gc.collect()
    time.sleep(RESTS)
    dist.destroy_process_group()


def backend_for(request: BenchRequest) -> str:
    """NCCL cannot share a GPU between ranks; gloo can."""
    alone = request.device == "cuda" and request.workers <= torch.cuda.device_count()
    return "nccl" if alone and dist.is_nccl_available() else "gloo"


def trainee(
    shape: Shape, batch: tuple[int, int], device: torch.device, home: Path, settles: float = 1.0, **wrapping: Any
) -> Trainee:
    """:param batch: sequences of a step and rank, and tokens of each; drawn afresh for each step."""
    torch.manual_seed(0)
    with device:
        # Where gloo stands in for NCCL, in the numbers that all versions of it can add.
        model = Transformer(shape).to(torch.bfloat16 if dist.get_backend() == "nccl" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=device.type == "cuda")
    generator = torch.Generator(device).manual_seed(1 + dist.get_rank())

    def make_loss(wrapped: nn.Module) -> Tensor:
        tokens_BT = torch.randint(shape.vocabulary, batch, generator=generator, device=device)
        return loss_of(wrapped(tokens_BT), tokens_BT)

    return Trainee(model, optimizer, make_loss, home, settles, **wrapping)


def _trainee(request: BenchRequest, device: torch.device, home: Path, **wrapping: Any) -> Trainee:
    batch = request.sequences, request.tokens
    return trainee(shape_for(request.parameters), batch, device, home, request.settles, **wrapping)


def of_step(request: BenchRequest, device: torch.device, home: Path) -> list[dict[str, Any]]:
    found = []
    for bucket_view in request.bucket_views:
        told = progress(f"steps, gradient_as_bucket_view={bucket_view}", 3 * request.turns)
        place = home / f"steps-{bucket_view}"
        learner = _trainee(request, device, place, gradient_as_bucket_view=bucket_view)
        costs = step_cost(learner, request.turns, request.steps, told)
        found.append(_described(request) | {"gradient_as_bucket_view": bucket_view} | costs)
    return found


def of_routes(request: BenchRequest, device: torch.device, home: Path) -> dict[str, Any]:
    told = progress("routes of steering", len(ROUTES) * request.turns)
    learner = _trainee(request, device, home / "routes")
    return _described(request) | route_cost(learner, ROUTES, request.turns, request.steps, told)


PARTS: dict[str, Callable[[BenchRequest, torch.device, Path], Any]] = {"step": of_step, "routes": of_routes}


def progress(title: str, total: int) -> Callable[[], None]:
    """Called after each of `total` pieces of work."""
    done = iter(range(1, total + 1))

    def told() -> None:
        if dist.get_rank() == 0:
            sys.stdout.write(f"{title}: {next(done)}/{total}\n")
            sys.stdout.flush()

    return told


def _described(request: BenchRequest) -> dict[str, Any]:
    return {
        "parameters": shape_for(request.parameters).parameters,
        "tokens_a_step": request.sequences * request.tokens,
        "workers": request.workers,
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
