"""The random streams of this process as plain values, and back."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from unisono.act.checkpoints.plain_files import CheckpointError


def capture() -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(numbers), gauss]}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    numpy = _numpy_random()
    if numpy is not None:
        name, keys, *rest = numpy.get_state()
        states["numpy"] = [str(name), keys.tolist(), *(part.item() if hasattr(part, "item") else part for part in rest)]
    return states


def check(states: dict[str, Any]) -> None:
    """Each state is tried on a generator that nobody uses."""
    try:
        torch.Generator().set_state(states["torch"])
        random.Random().setstate(_python(states["python"]))  # noqa: S311 (nothing is drawn from it)
        numpy = _numpy_random()
        if numpy is not None and "numpy" in states:
            numpy.RandomState().set_state(tuple(states["numpy"]))
        if _has_cuda(states):
            torch.Generator("cuda").set_state(states["cuda"])
    except Exception as error:
        raise CheckpointError(
            f"A checkpoint should hold the states of the random streams. Found one that does not fit ({error}). "
            "Use a checkpoint that the same versions of Python, torch and numpy have written."
        ) from error


def put_back(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(_python(states["python"]))
    numpy = _numpy_random()
    if numpy is not None and "numpy" in states:
        numpy.set_state(tuple(states["numpy"]))
    if _has_cuda(states):
        torch.cuda.set_rng_state(states["cuda"])


def _python(state: list[Any]) -> tuple[Any, ...]:
    version, numbers, gauss = state
    return version, tuple(numbers), gauss


def _has_cuda(states: dict[str, Any]) -> bool:
    return "cuda" in states and torch.cuda.is_initialized()


def _numpy_random() -> Any:
    """Only where the script itself has imported it."""
    return getattr(sys.modules.get("numpy"), "random", None)
