"""What is measured, and for how long. Handed to the processes that train as one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

CPU_SIZES = (1_000_000, 10_000_000, 100_000_000)
GPU_SIZES = (12 << 20, 128 << 20, 1 << 30)
"""The first is one bucket of DDP as it is by default."""


@dataclass(frozen=True)
class BenchRequest:
    device: str
    parameters: int
    workers: int
    sizes: tuple[int, ...]
    seconds: float = 3.0
    """For each line of the table of reads."""

    turns: int = 5
    steps: int = 5
    """Timed steps of a block of training; each way to train has one block a turn."""

    settles: float = 1.0
    """Seconds at the start of a block that are not timed."""

    sequences: int = 8
    tokens: int = 128
    bucket_views: tuple[bool, ...] = (False, True)
    """Values of DDP's `gradient_as_bucket_view`."""

    parts: tuple[str, ...] = ("step", "routes")

    def as_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> BenchRequest:
        fields = json.loads(line)
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**fields | lists)


def usual(device: str, parameters: int | None, workers: int | None) -> BenchRequest:
    if device == "cuda":
        size, ranks = parameters or 100_000_000, workers or 1
        return BenchRequest(device, size, ranks, GPU_SIZES, steps=20, sequences=4, tokens=2_048)
    return BenchRequest(device, parameters or 10_000_000, workers or 2, CPU_SIZES)


def short(request: BenchRequest, parameters: int | None) -> BenchRequest:
    """Half a minute on two cores: shows that it works, too short for a figure."""
    return replace(
        request,
        parameters=parameters or 1_000_000,
        sizes=request.sizes[:1],
        seconds=0.3,
        turns=2,
        steps=4,
        settles=0.1,
        sequences=2,
        tokens=64,
        bucket_views=(False,),
    )
