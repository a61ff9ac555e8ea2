"""A rank's directions as bytes: the whole model's sketch at full length, and one sixteenth of it for each layer group.

G = layer groups, K = sketch length, k = length of a group's sketch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unisono.sketch import dequantise, narrow, quantise, window_seed
from unisono.sketch.length import SHORTEST


@dataclass(frozen=True, slots=True)
class Format:
    length: int
    groups: int

    @property
    def group_length(self) -> int:
        return max(SHORTEST, self.length // 16)

    @property
    def size(self) -> int:
        return self.length + self.groups * self.group_length + 4 * (1 + self.groups)

    def encode(self, sketch_GK: Tensor, window: int) -> Tensor:
        whole_K, whole_scale = quantise(sketch_GK.sum(0))
        group_Gk, scale_G = quantise(narrow(sketch_GK, self.group_length, window_seed(window)))
        scales = torch.cat([whole_scale.reshape(1), scale_G]).float()
        return torch.cat([whole_K.view(torch.uint8), group_Gk.flatten().view(torch.uint8), scales.view(torch.uint8)])

    def decode(self, body: Tensor) -> tuple[Tensor, Tensor]:
        """The sketches of the whole model (K) and of its groups (G, k)."""
        ends = [self.length, self.groups * self.group_length, 4 * (1 + self.groups)]
        whole_K, group_Gk, scales = body.split(ends)
        scale = scales.clone().view(torch.float32)
        steps_Gk = group_Gk.view(torch.int8).reshape(self.groups, self.group_length)
        return dequantise(whole_K.view(torch.int8), scale[0]), dequantise(steps_Gk, scale[1:])
