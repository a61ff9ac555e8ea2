"""A number that the script hands over about the weights as they are, on its way to the listening thread."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from unisono.listen.device_scalars import DeviceScalars

VALIDATION = "validation"


class Validation:
    """Nothing here waits: what lies on a device is copied, `ready()` polls, `message()` reads.

    :param step: The last step before it.
    """

    def __init__(self, step: int, accuracy: Any) -> None:
        self.step, self._time = step, time.time()
        self._number: float | Tensor = _checked(accuracy)
        self._copied = DeviceScalars([self._number], torch.float64)
        self._arrived: torch.cuda.Event | None = None
        if isinstance(self._number, Tensor):
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(self._number.device))

    def ready(self) -> bool:
        return self._arrived is None or self._arrived.query()

    def message(self) -> dict[str, Any]:
        value = self._copied.unpack(self._number)
        return {"kind": VALIDATION, "step": self.step, "time": self._time, "value": value}


def _checked(accuracy: Any) -> float | Tensor:
    if not isinstance(accuracy, Tensor):
        return float(accuracy)
    if accuracy.numel() != 1:
        raise ValueError(f"it should be one number, and is a tensor of shape {tuple(accuracy.shape)}")
    number = accuracy.detach().reshape(())
    return number.item() if number.device.type == "cpu" else number
