"""One reading of a rank's gradients on its way from the training thread to the listening thread.

P = parameters, G = layer groups, K = sketch length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from unisono.sketch import wrap


class BufferRing:
    """Buffers that go round between the training thread and the listening thread: as many as there may be, or none."""

    def __init__(self, make: Callable[[], Tensor], most: int) -> None:
        self._make, self._to_make = make, most
        self._spare: list[Tensor] = []
        self._returning: list[tuple[Tensor, torch.cuda.Event]] = []

    def take(self) -> Tensor | None:
        if self._returning and self._returning[0][1].query():
            self._spare.append(self._returning.pop(0)[0])
        if self._spare:
            return self._spare.pop()
        if not self._to_make:
            return None
        self._to_make -= 1
        return self._make()

    def give_back(self, buffer: Tensor) -> None:
        self._spare.append(buffer)

    def give_back_after(self, buffer: Tensor, event: torch.cuda.Event) -> None:
        """A copy into it is still under way."""
        self._returning.append((buffer, event))

    def close(self) -> None:
        self._spare, self._to_make = [], 0


class SentFormat(Protocol):
    """What of a reading is sent to other ranks."""

    def shorten(self, sketch_GK: Tensor, window: int) -> tuple[Tensor, Tensor]: ...
    def pack(self, whole_K: Tensor, group_Gk: Tensor) -> Tensor: ...
    def encode(self, sketch_GK: Tensor, window: int) -> Tensor: ...


class GradientReadout(ABC):
    """Squared norms of parameters and sketches of layer groups, as read."""

    def __init__(self, window: int, group_P: Tensor, groups: int) -> None:
        self.window = window
        self._group_P, self._groups = group_P, groups

    @abstractmethod
    def ready(self) -> bool: ...

    @abstractmethod
    def directions(self, layout: SentFormat, unscale: float) -> Tensor:
        """As bytes for others. Called off the training thread."""

    @abstractmethod
    def discard(self) -> None:
        """Gives the buffer back: nobody asks for the sketches any more."""

    @abstractmethod
    def _squared_norms(self) -> Tensor: ...

    @abstractmethod
    def _finite(self) -> bool:
        """Of the sketches: squares of very large numbers may overflow where their sums do not."""

    def squared_norms(self) -> tuple[int, tuple[float, ...]]:
        """How many parameters have a gradient that is not finite, and the squared norm of each group."""
        squared_norm_P = self._squared_norms()
        squared_norm_G = torch.zeros(self._groups, dtype=torch.float64)
        squared_norm_G.index_add_(0, self._group_P, squared_norm_P)
        if squared_norm_G.isfinite().all() or self._finite():
            return 0, tuple(squared_norm_G.tolist())
        return int((~squared_norm_P.isfinite()).sum()), tuple(squared_norm_G.tolist())


class HostReadout(GradientReadout):
    """Read on a CPU: sums that are still as the fold left them."""

    def __init__(
        self,
        window: int,
        group_P: Tensor,
        ring: BufferRing,
        accumulator_G2K: Tensor,
        square_P: Sequence[float | Tensor],
    ) -> None:
        super().__init__(window, group_P, len(accumulator_G2K))
        self._ring, self._square_P = ring, square_P
        self._accumulator_G2K: Tensor | None = accumulator_G2K
        self._sketch_GK = accumulator_G2K[:, :0]

    def ready(self) -> bool:
        return True

    def directions(self, layout: SentFormat, unscale: float) -> Tensor:
        return layout.encode(self._sketches() * unscale, self.window)

    def discard(self) -> None:
        if self._accumulator_G2K is not None:
            self._ring.give_back(self._accumulator_G2K.zero_())
            self._accumulator_G2K = None

    def _squared_norms(self) -> Tensor:
        return torch.as_tensor(self._square_P, dtype=torch.float64)

    def _finite(self) -> bool:
        return bool(self._sketches().isfinite().all())

    def _sketches(self) -> Tensor:
        if self._accumulator_G2K is not None:
            self._sketch_GK = wrap(self._accumulator_G2K)
            self.discard()
        return self._sketch_GK


class DeviceReadout(GradientReadout):
    """Read on a GPU, and copied to pinned memory beside the training stream."""

    def __init__(
        self,
        window: int,
        group_P: Tensor,
        groups: int,
        ring: BufferRing,
        pinned: Tensor,
        stream: torch.cuda.Stream,
        sent: Sequence[Tensor],
        square_P: Tensor,
    ) -> None:
        super().__init__(window, group_P, groups)
        self._ring = ring
        self._pinned: Tensor | None = pinned
        on_device = (square_P, *sent)
        parts = [part.numel() * part.element_size() // pinned.element_size() for part in on_device]
        squares, *sketches = pinned.split(parts)
        self._square_P: Tensor = squares.view(torch.float64)
        self._sent = [part.view(there.shape) for part, there in zip(sketches, sent, strict=True)]
        # Kept until they have arrived: the training stream must not get their memory back before.
        self._on_device: tuple[Tensor, ...] = on_device
        stream.wait_stream(torch.cuda.current_stream(square_P.device))
        with torch.cuda.stream(stream):
            for here, there in zip((self._square_P, *self._sent), on_device, strict=True):
                here.copy_(there, non_blocking=True)
        self._arrived = stream.record_event()

    def ready(self) -> bool:
        arrived: bool = self._arrived.query()
        if arrived:
            self._on_device = ()
        return arrived

    def directions(self, layout: SentFormat, unscale: float) -> Tensor:
        whole_K, group_Gk = self._sent
        return layout.pack(whole_K * unscale, group_Gk * unscale)

    def discard(self) -> None:
        if self._pinned is not None:
            self._ring.give_back_after(self._pinned, self._arrived)
            self._pinned = None

    def _squared_norms(self) -> Tensor:
        return self._square_P

    def _finite(self) -> bool:
        return all(bool(sketch.isfinite().all()) for sketch in self._sent)
