"""A rank's directions as bytes: the sketch of the whole model, and a shorter one for each layer group.

Up to 64 workers the sketch has its full length, and a group's a sixteenth of it. With more workers all of them send
less, so that what rank 0 receives at a reading stays about the same. W = workers, G = layer groups, K = sketch length,
k = length of a group's sketch, B = bytes of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from unisono.common.limits import ALL_PAIRS_UP_TO, MATRIX_IN_BURSTS_UP_TO
from unisono.sketch import narrow, quantise, window_seed
from unisono.sketch.length import SHORTEST

INBOUND = 1 << 24
"""Bytes that rank 0 receives at a reading from more than 64 workers, more or less; exceeded where the shortest
sketches take more, beyond 16,384 workers."""

GROUP_SHARE = 16


class Directions(NamedTuple):
    """The ranks' sketches of one step, as `AllRanksStep` holds them."""

    sketch_WK: Tensor | None = None
    sketch_GWK: Tensor | None = None
    scale_W: Tensor | None = None
    scale_GW: Tensor | None = None


@dataclass(frozen=True, slots=True)
class WireFormat:
    """What all ranks send: it follows from what all of them know.

    :param model_length: The length of the model's sketch.
    """

    model_length: int
    model_groups: int
    world: int = 1

    @property
    def length(self) -> int:
        if self.world <= ALL_PAIRS_UP_TO:
            return self.model_length
        return min(self.model_length, max(SHORTEST, _power_of_two(INBOUND // self.world)))

    @property
    def groups(self) -> int:
        """With so many workers that no values by group and worker are kept, nobody would look at them."""
        return self.model_groups if self.world <= MATRIX_IN_BURSTS_UP_TO else 0

    @property
    def group_length(self) -> int:
        usual = max(SHORTEST, self.model_length // GROUP_SHARE)
        if self.world <= ALL_PAIRS_UP_TO or not self.groups:
            return usual
        room = INBOUND // self.world - self.length
        return min(usual, max(SHORTEST, _power_of_two(room // self.groups)))

    @property
    def size(self) -> int:
        return self.length + self.groups * self.group_length + 4 * (1 + self.groups)

    def encode(self, sketch_GK: Tensor, window: int) -> Tensor:
        return self.pack(*self.shorten(sketch_GK, window))

    def shorten(self, sketch_GK: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """The sketch of the whole model and those of its groups, as long as they are sent, on the same device."""
        seed = window_seed(window)
        whole_K = sketch_GK.sum(0)
        if self.length < self.model_length:
            whole_K = narrow(whole_K, self.length, seed)
        return whole_K, narrow(sketch_GK, self.group_length, seed) if self.groups else whole_K[:0]

    def pack(self, whole_K: Tensor, group_Gk: Tensor) -> Tensor:
        parts, scales = zip(*(_rounded(sketch) for sketch in (whole_K, group_Gk) if sketch.numel()), strict=True)
        return torch.cat([*parts, torch.cat(scales).view(torch.uint8)])

    def decode(self, body_WB: Tensor, sent_W: Tensor) -> Directions:
        """What the ranks sent, still as whole numbers and where it lies; no scale where a rank sent nothing."""
        ends = [self.length, self.groups * self.group_length, 4 * (1 + self.groups)]
        whole_WK, group_WGk, scales = body_WB.view(torch.int8).split(ends, 1)
        scale_WG = scales.contiguous().view(torch.float32).masked_fill(~sent_W[:, None], torch.nan)
        if not self.groups:
            return Directions(whole_WK, None, scale_WG[:, 0], None)
        group_GWk = group_WGk.unflatten(1, (self.groups, self.group_length)).transpose(0, 1)
        return Directions(whole_WK, group_GWk, scale_WG[:, 0], scale_WG[:, 1:].T)


def _rounded(sketch: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers as bytes, and what one is worth in each sketch."""
    steps, scales = quantise(sketch)
    return steps.flatten().view(torch.uint8), scales.reshape(-1).float()


def _power_of_two(most: int) -> int:
    """The largest that is not above."""
    return 1 << most.bit_length() - 1 if most > 0 else 0
