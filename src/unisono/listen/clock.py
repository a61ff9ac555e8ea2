"""Marks in time that cost the training thread nothing: host time on CPU, events on a GPU."""

from __future__ import annotations

import time
from typing import Protocol, TypeAlias

import torch

Mark: TypeAlias = "float | torch.cuda.Event"


class Clock(Protocol):
    def mark(self) -> Mark: ...
    def seconds(self, start: Mark, end: Mark) -> float: ...


class HostClock:
    def mark(self) -> Mark:
        return time.perf_counter()

    def seconds(self, start: Mark, end: Mark) -> float:
        return float(end) - float(start)  # type: ignore[arg-type]


class CudaClock:
    """Host times lie on a GPU, where the host runs ahead: events in the training stream do not."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: Mark, end: Mark) -> float:
        return start.elapsed_time(end) / 1000  # type: ignore[union-attr, arg-type, no-any-return]


def clock_for(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
