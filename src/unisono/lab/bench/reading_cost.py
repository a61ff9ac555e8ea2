"""What one read of the gradients costs: against a copy, against torch's norm, and over a whole model's list of tensors.

Suffixes give shapes: P = parameters, G = layer groups, 2K = an unwrapped sketch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unisono.common.layer_groups import layer_groups
from unisono.lab.bench.models import Shape, named_sizes
from unisono.lab.bench.timing import Stopwatch
from unisono.sketch.fingerprint import fingerprint
from unisono.sketch.model_sketch import ModelSketch

LENGTH = 65_536
CHUNK = 1 << 26
COPIES_AT_ONCE = 4
"""Buffers of the measured size that have to fit: source, copy, and room for others' intermediate results."""


def of_buffers(sizes: Sequence[int], dtypes: Sequence[torch.dtype], stopwatch: Stopwatch) -> list[dict[str, Any]]:
    """A row for each size and kind of number that fits into memory."""
    wanted = [(elements, dtype) for dtype in dtypes for elements in sizes]
    return [_of_buffer(*one, stopwatch) for one in wanted if _fits(*one, stopwatch.device)]


def of_model(shape: Shape, dtype: torch.dtype, stopwatch: Stopwatch) -> dict[str, Any]:
    """The gradients of a model as they are, one tensor a parameter: `get_total_norm` against norms and sketches."""
    return of_tensors(named_sizes(shape), dtype, stopwatch)


def of_tensors(sizes: Mapping[str, Sequence[int]], dtype: torch.dtype, stopwatch: Stopwatch) -> dict[str, Any]:
    gradients = [torch.randn(*size, device=stopwatch.device, dtype=dtype) for size in sizes.values()]
    reader = Reader(list(sizes), gradients, stopwatch.device)
    total_norm = torch.nn.utils.get_total_norm
    works = {"total_norm": lambda: total_norm(gradients), "ours": reader.squared_norms}
    times = stopwatch.by_turns(works)
    exact = sum(_exact_square(gradient) for gradient in gradients) ** 0.5
    ours = float(reader.squared_norms().sum()) ** 0.5
    return {
        **_named(dtype, sum(gradient.numel() for gradient in gradients)),
        "tensors": len(gradients),
        "milliseconds": times,
        "ours_to_total_norm": times["ours"] / times["total_norm"],
        "error_of_total_norm": float(total_norm(gradients)) / exact - 1,
        "error_of_ours": ours / exact - 1,
    }


class Reader:
    """Reads the same gradients again and again, as a monitor does."""

    def __init__(self, names: list[str], gradients: Sequence[Tensor], device: torch.device) -> None:
        group_names, group_of = layer_groups(names)
        elements = [gradient.numel() for gradient in gradients]
        self._gradients = gradients
        self._reading = ModelSketch(names, elements, group_of, len(group_names), LENGTH, device)
        self._reading.reseed(1)
        # On a GPU the kernels bring their own.
        self._accumulator_G2K = torch.zeros(len(group_names), 2 * LENGTH) if device.type == "cpu" else None

    def squared_norms(self) -> Tensor:
        """In float64 and still on their device; the sketches are made with them, and thrown away."""
        self._reading.begin(None if self._accumulator_G2K is None else self._accumulator_G2K.zero_())
        for index, gradient in enumerate(self._gradients):
            self._reading.add(index, gradient)
        _, squared_norm_P = self._reading.end()
        return squared_norm_P

    def add_once_more(self) -> None:
        """Without what is done once for a whole reading, as for one of its buckets."""
        for index, gradient in enumerate(self._gradients):
            self._reading.add(index, gradient)
        self._reading.flush()


def _of_buffer(elements: int, dtype: torch.dtype, stopwatch: Stopwatch) -> dict[str, Any]:
    gradient = torch.randn(elements, device=stopwatch.device, dtype=dtype)
    copy, reader = torch.empty_like(gradient), Reader(["weight"], [gradient], stopwatch.device)
    norm = torch.linalg.vector_norm
    works = {
        "copy": lambda: copy.copy_(gradient),
        "vector_norm": lambda: norm(gradient),
        "ours": reader.squared_norms,
        "ours in a reading": reader.add_once_more,
        "fingerprint": lambda: fingerprint([gradient]),
    }
    times = stopwatch.by_turns(works)
    exact, read_bytes = _exact_square(gradient) ** 0.5, elements * gradient.element_size()
    speed = {name: read_bytes / milliseconds / 1e6 for name, milliseconds in times.items()}
    speed["copy"] *= 2  # it writes as much as it reads
    return {
        **_named(dtype, elements),
        "milliseconds": times,
        "gigabytes_a_second": speed,
        "ours_to_vector_norm": times["ours"] / times["vector_norm"],
        "ours_in_a_reading_to_vector_norm": times["ours in a reading"] / times["vector_norm"],
        "ours_of_copy_speed": speed["ours"] / speed["copy"],
        "ours_in_a_reading_of_copy_speed": speed["ours in a reading"] / speed["copy"],
        "fingerprint_to_vector_norm": times["fingerprint"] / times["vector_norm"],
        "error_of_vector_norm": float(norm(gradient)) / exact - 1,
        "error_of_ours": float(reader.squared_norms().sum()) ** 0.5 / exact - 1,
    }


def _named(dtype: torch.dtype, elements: int) -> dict[str, Any]:
    return {"dtype": str(dtype).removeprefix("torch."), "elements": elements}


def _exact_square(tensor: Tensor) -> float:
    return sum(float(part.double().square().sum()) for part in tensor.detach().flatten().split(CHUNK))


def _fits(elements: int, dtype: torch.dtype, device: torch.device) -> bool:
    return elements * dtype.itemsize * COPIES_AT_ONCE < free_bytes(device)


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return _available_memory() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _available_memory() -> int | None:
    """As Linux counts it, with what its file cache would give back."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
