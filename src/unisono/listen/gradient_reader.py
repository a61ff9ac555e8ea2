"""Reads one rank's gradients of one step. Does not know that there are other ranks.

P = parameters, G = layer groups, K = sketch length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from unisono.common.layer_groups import layer_groups
from unisono.listen.gradient_buffers import BufferRing, DeviceReadout, GradientReadout, HostReadout
from unisono.listen.read_timing import GradientLifetime, ReadTiming
from unisono.sketch import ModelSketch, compile_kernels, default_length, real_elements, total_square, window_seed
from unisono.sketch.wire_format import WireFormat

READINGS_BYTES = 64 << 20
"""Host memory for readings that the listening thread has not yet taken over."""


class GradientReader:
    def __init__(self, named_parameters: Sequence[tuple[str, nn.Parameter]], world: int = 1) -> None:
        self.names = [name for name, _ in named_parameters]
        self.parameters = [parameter for _, parameter in named_parameters]
        self.device = self.parameters[0].device
        numels = [real_elements(parameter) for parameter in self.parameters]
        self.total = sum(numels)
        self.length = default_length(self.total)
        group_names, group_of = layer_groups(self.names)
        self.group_names: tuple[str, ...] = tuple(group_names)
        self._group_P = torch.tensor(group_of)
        self.trouble = compile_kernels((p.dtype for p in self.parameters), self.length, self.device)
        """Why gradients are read more slowly than they could be."""

        self._reading = ModelSketch(self.names, numels, group_of, len(group_names), self.length, self.device)
        self._collector = ReadTiming(self._reading.flush)
        self._on_device = self.device.type == "cuda"
        self.layout = WireFormat(self.length, len(group_names), world)

        self._ring = self._make_ring()
        self._stream = torch.cuda.Stream(self.device) if self._on_device else None
        self._buffer: Tensor | None = None
        self._window: int | None = None

    def open(self, window: int, lifetime: GradientLifetime = GradientLifetime.STAY) -> bool:
        """Begins a reading; false when the listening thread has not yet given a buffer back."""
        self._buffer = self._ring.take()
        if self._buffer is None:
            return False
        if window != self._window:
            self._reading.reseed(window_seed(window))
            self._window = window
        self._reading.begin(None if self._on_device else self._buffer)
        self._collector.begin(lifetime, self.parameters)
        return True

    def hear(self, index: int) -> None:
        parameter = self.parameters[index]
        gradient = parameter.grad
        if gradient is not None and self._buffer is not None and self._reading.add(index, gradient):
            self._collector.noted(parameter, gradient)

    def close(self) -> tuple[GradientReadout, float]:
        """The reading, and the seconds that it took beside the calls of `hear`."""
        buffer, self._buffer = self._buffer, None
        if buffer is None or self._window is None:
            raise RuntimeError("A reading should be opened before it is closed.")
        try:
            spent = self._collector.end(self._reading.pending)
            return self._readout(self._window, buffer), spent
        except Exception:
            self._buffer = buffer
            self.abandon()
            raise

    def _readout(self, window: int, buffer: Tensor) -> GradientReadout:
        """On a GPU this starts the copy to the host."""
        if self._stream is None:
            return HostReadout(window, self._group_P, self._ring, buffer, self._reading.square_P)
        sketch_GK, square_P = self._reading.end()
        sent = self.layout.shorten(sketch_GK, window)
        return DeviceReadout(window, self._group_P, len(sketch_GK), self._ring, buffer, self._stream, sent, square_P)

    def abandon(self) -> None:
        self._reading.forget()
        self._collector.forget()
        if self._buffer is not None:
            self._give_back(self._buffer)
            self._buffer = None

    def squared_norm_of(self, indices: Sequence[int]) -> float | Tensor:
        """Squared norm of the current gradients of some parameters."""
        gradients = [self.parameters[index].grad for index in indices]
        return total_square([gradient for gradient in gradients if gradient is not None], self.device)

    def share_of(self, rank: int, world: int) -> list[int]:
        """The parameters whose reduced gradient this rank squares."""
        return even_share([parameter.numel() for parameter in self.parameters], rank, world)

    def release(self) -> None:
        """Lets go of the model: parameters and their gradients must not outlive it for our sake."""
        self.abandon()
        self.parameters = []
        self._ring.close()

    def _give_back(self, buffer: Tensor) -> None:
        self._ring.give_back(buffer if self._on_device else buffer.zero_())

    def _make_ring(self) -> BufferRing:
        groups, length = len(self.group_names), self.length
        sent = self.layout.length + self.layout.groups * self.layout.group_length
        numbers = 2 * len(self.names) + sent if self._on_device else groups * 2 * length
        most = min(64, max(3, READINGS_BYTES // (4 * numbers)))
        if self._on_device:
            return BufferRing(lambda: torch.empty(numbers, pin_memory=True), most)
        return BufferRing(lambda: torch.zeros(groups, 2 * length, device=self.device), most)


def even_share(sizes: Sequence[int], worker: int, world: int) -> list[int]:
    """The places that fall to one worker: even by elements, and every worker knows the split."""
    total, seen, owners = max(1, sum(sizes)), 0, []
    for size in sizes:
        owners.append(min(world - 1, (seen + size // 2) * world // total))
        seen += size
    return [place for place, owner in enumerate(owners) if owner == worker]
