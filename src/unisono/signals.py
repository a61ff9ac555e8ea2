"""What one rank has to say about a step, and what all ranks said together.

W = workers, G = layer groups, K = sketch length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LocalSignal:
    """One rank's step in plain numbers: small enough to travel at every step."""

    step: int
    time: float
    loss: float | None = None
    finite: bool = True
    skipped: bool = False
    compute: float | None = None
    seconds: float = 0.0
    cost: float = 0.0
    """Seconds of this step spent inside unisono on the training thread."""

    clip_norm: float | None = None
    heard: bool = False
    window: int = 0
    nonfinite: int = 0
    reduced_share: float | None = None
    """Squared norm of this rank's share of the parameters after all-reduce."""

    squared_norm_G: tuple[float, ...] = ()

    @property
    def squared_norm(self) -> float | None:
        return sum(self.squared_norm_G) if self.heard else None


@dataclass(frozen=True, slots=True)
class RollCall:
    """All ranks at one step, in rank order; `None` where a rank was silent."""

    step: int
    signal_W: tuple[LocalSignal | None, ...]
    sketch_WK: Tensor | None = None
    sketch_GWK: Tensor | None = None
    plain_mean: bool = True
    """All-reduce is a plain mean: no compression, no joined rank."""


_STEP = struct.Struct("<qddddddddqII")
_LOSS, _FINITE, _SKIPPED, _CLIP, _HEARD, _REDUCED, _COMPUTE = (1 << bit for bit in range(7))


def pack(signal: LocalSignal) -> bytes:
    flags = (
        _LOSS * (signal.loss is not None)
        | _FINITE * signal.finite
        | _SKIPPED * signal.skipped
        | _CLIP * (signal.clip_norm is not None)
        | _HEARD * signal.heard
        | _REDUCED * (signal.reduced_share is not None)
        | _COMPUTE * (signal.compute is not None)
    )
    numbers = (signal.time, signal.loss or 0.0, signal.compute or 0.0, signal.seconds, signal.cost)
    more = (signal.clip_norm or 0.0, signal.reduced_share or 0.0, float(signal.nonfinite))
    groups = signal.squared_norm_G
    head = _STEP.pack(signal.step, *numbers, *more, signal.window, flags, len(groups))
    return head + struct.pack(f"<{len(groups)}d", *groups)


def unpack(message: bytes) -> Iterator[LocalSignal]:
    """The signals packed one after the other in `message`; raises struct.error on a torn one."""
    at = 0
    while at < len(message):
        step, time, loss, compute, seconds, cost, clip, reduced, nonfinite, window, flags, groups = _STEP.unpack_from(
            message, at
        )
        at += _STEP.size
        norms = struct.unpack_from(f"<{groups}d", message, at)
        at += 8 * groups
        yield LocalSignal(
            step=step,
            time=time,
            loss=loss if flags & _LOSS else None,
            finite=bool(flags & _FINITE),
            skipped=bool(flags & _SKIPPED),
            compute=compute if flags & _COMPUTE else None,
            seconds=seconds,
            cost=cost,
            clip_norm=clip if flags & _CLIP else None,
            heard=bool(flags & _HEARD),
            window=window,
            nonfinite=int(nonfinite),
            reduced_share=reduced if flags & _REDUCED else None,
            squared_norm_G=norms,
        )
