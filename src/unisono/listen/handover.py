"""What the training thread hands to the listening thread at the end of a step.

Numbers may still be on their way from the device: `ready()` polls, `signal()` reads. Nothing here waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unisono.listen.clock import Clock, Mark
from unisono.listen.device_scalars import DeviceScalars
from unisono.listen.evidence.raw_evidence import RawEvidence
from unisono.listen.gradient_buffers import GradientReadout
from unisono.listen.messages import RankStep, Steered


@dataclass(slots=True)
class Handover:
    step: int
    time: float
    due: bool
    """The plan says that every rank listens to this step, whether or not this one managed to."""

    window: int
    skipped: bool
    cost: float
    clock: Clock
    began: Mark
    backward: Mark | None
    ended: Mark
    loss: float | Tensor | None
    scale: float | Tensor | None
    clip_norm: float | Tensor | None
    finite_sum: float | Tensor | None
    """Sum of one small gradient: not finite if anything upstream of it was not."""

    reduced_share: float | Tensor | None
    readout: GradientReadout | None
    raw_evidence: RawEvidence
    steered: Steered | None = None
    _floats: DeviceScalars = field(init=False)
    _prints: DeviceScalars = field(init=False)
    _arrived: torch.cuda.Event | None = field(default=None, init=False)

    def send(self, device: torch.device) -> Handover:
        """Starts the copy of everything that still lies on a device."""
        self._floats = DeviceScalars(self._numbers(), torch.float64)
        self._prints = DeviceScalars(self.raw_evidence.prints(), torch.int64)
        if device.type == "cuda":
            # Also when nothing is on its way for us: samples of the inputs may be.
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(device))
        return self

    def discard(self) -> None:
        if self.readout is not None:
            self.readout.discard()

    def ready(self) -> bool:
        ended = isinstance(self.ended, float) or self.ended.query()
        arrived = self._arrived is None or self._arrived.query()
        return ended and arrived and (self.readout is None or self.readout.ready())

    def unscale(self) -> float:
        """Factor from gradients as read to gradients of the loss: the loss scaler's share taken out."""
        return 1.0 / (self._floats.unpack(self.scale) or 1.0)

    def signal(self) -> RankStep:
        loss, clip_norm, finite_sum, reduced = (
            self._floats.unpack(number) for number in (self.loss, self.clip_norm, self.finite_sum, self.reduced_share)
        )
        unscale = self.unscale()
        nonfinite, squared_norm_G = self.readout.squared_norms() if self.readout else (0, ())
        return RankStep(
            step=self.step,
            time=self.time,
            loss=loss,
            finite=nonfinite == 0 and math.isfinite(finite_sum or 0.0) and math.isfinite(loss or 0.0),
            skipped=self.skipped,
            compute=None if self.backward is None else self.clock.seconds(self.began, self.backward),
            seconds=self.clock.seconds(self.began, self.ended),
            cost=self.cost,
            clip_norm=clip_norm,
            due=self.due,
            heard=self.readout is not None,
            window=self.window,
            nonfinite=nonfinite,
            reduced_share=None if reduced is None else reduced * unscale**2,
            squared_norm_G=tuple(number * unscale**2 for number in squared_norm_G),
            weight_W=() if self.steered is None else self.steered.weight_W,
            distance_W=() if self.steered is None else self.steered.distance_W,
        )

    def print_of(self, number: int | Tensor | None) -> int | None:
        """A fingerprint of the evidence, once it has arrived."""
        value = self._prints.unpack(number)
        return None if value is None else int(value)

    def number_of(self, number: float | Tensor | None) -> float | None:
        return self._floats.unpack(number)

    def _numbers(self) -> tuple[float | Tensor | None, ...]:
        numbers = (self.loss, self.scale, self.clip_norm, self.finite_sum, self.reduced_share)
        return *numbers, self.raw_evidence.weight_square
