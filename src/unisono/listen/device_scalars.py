"""Numbers that may still be on a device: read at once where that is free, later where it would make the host wait."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def plain(number: Tensor) -> float | Tensor:
    return number.detach().item() if number.device.type == "cpu" else number.detach().clone()


def sum_of(gradient: Tensor) -> float | Tensor:
    """Finite only if every element is. In double precision: scaled gradients may be huge and yet finite."""
    values = gradient._values() if gradient.is_sparse else gradient
    return plain((torch.view_as_real(values) if values.is_complex() else values).sum(dtype=torch.float64))


class DeviceScalars:
    """Numbers of one type on their way from a device to the host, all in one copy."""

    def __init__(self, numbers: Iterable[object], dtype: torch.dtype) -> None:
        tensors = [number for number in numbers if isinstance(number, Tensor)]
        self._place = {id(tensor): place for place, tensor in enumerate(tensors)}
        self._kept = tensors
        self._host: Tensor | None = None
        self._values: list[float] | None = None
        if tensors:
            # A model may lie on several devices.
            device = tensors[0].device
            stacked = torch.stack([tensor.detach().reshape(()).to(device, dtype) for tensor in tensors])
            self._host = torch.empty(len(tensors), dtype=dtype, pin_memory=True)
            self._host.copy_(stacked, non_blocking=True)

    def __bool__(self) -> bool:
        return self._host is not None

    def unpack(self, number: float | Tensor | None) -> float | None:
        """The number itself, once all have arrived."""
        if not isinstance(number, Tensor):
            return number
        if self._values is None:
            self._values = [] if self._host is None else self._host.tolist()
        return self._values[self._place[id(number)]]
