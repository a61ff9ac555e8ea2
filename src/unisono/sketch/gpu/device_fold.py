"""Norms and sketches of many gradients on a GPU, one launch for all that have the same type of numbers.

What comes out is still on its way when `end` returns. Suffixes give shapes: P = parameters, G = layer groups, K =
sketch length, R = runs, J = tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter

import torch
from torch import Tensor

from unisono.sketch.gpu.launching import (
    KernelChoices,
    Launch,
    gather_sketch,
    gather_squares,
    is_aligned,
    readable,
    region_of,
    tiles_of,
    to_device,
)
from unisono.sketch.gpu.layout import RowRun, lay_out, runs_of, slots_wanted
from unisono.sketch.hashing import parameter_key

MOST_LAUNCHES = 256
"""Kept for sets of gradients that are read together: more are seen only where these change all the time."""


class DeviceFold:
    """
    :param names: canonical names of the parameters, which key the sketch.
    :param elements: elements of each parameter.
    :param group_of: the layer group of each parameter, counted from zero.
    """

    def __init__(
        self, names: Sequence[str], elements: Sequence[int], group_of: Sequence[int], length: int, device: torch.device
    ) -> None:
        self._length, self._device = length, device
        self._elements_P = list(elements)
        self._key_P = [parameter_key(name) for name in names]
        self._runs_P: list[list[RowRun]] = []
        place = 0
        for index, (count, key, group) in enumerate(zip(elements, self._key_P, group_of, strict=True)):
            self._runs_P.append(runs_of(index, count, key, group, length, place))
            place += len(self._runs_P[-1])
        self._slots_G = slots_wanted([run for runs in self._runs_P for run in runs], max(group_of) + 1)
        self._first_slot_G = to_device([0, *accumulate(self._slots_G)], torch.int32, device)
        self._first_run_P = to_device([0, *accumulate(map(len, self._runs_P))], torch.int32, device)
        self._region = torch.zeros(region_of(sum(self._slots_G), length), device=device)
        self._square_RJ = torch.zeros(place, tiles_of(length), device=device)
        self._launches: dict[tuple[int, ...], Launch] = {}
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        self._choices = KernelChoices(seed, self._length, self._device)

    def begin(self) -> None:
        self._region.zero_()
        self._square_RJ.zero_()

    def read(self, gradients: Sequence[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
        """Reads gradients of parameters, given with their numbers; those that it cannot read are returned."""
        batches: dict[tuple[torch.dtype, bool], list[tuple[int, Tensor]]] = {}
        others = []
        # In one order, whatever the order of their arrival: a layout is worked out once.
        for each in sorted(gradients, key=itemgetter(0)):
            gradient = each[1]
            if readable(gradient, self._device):
                batches.setdefault((gradient.dtype, is_aligned(gradient)), []).append(each)
            else:
                others.append(each)
        for batch in batches.values():
            indices, together = zip(*batch, strict=True)
            launch = self._launches.get(indices) or self._prepare(indices)
            launch.read(together, self._choices, self._region, self._square_RJ)
        return others

    def end(self) -> tuple[Tensor, Tensor]:
        """The sketch of each group, in float32, and the squared norm of each parameter, in float64."""
        sketch_GK = torch.empty(len(self._slots_G), self._length, device=self._device)
        square_P = torch.empty(len(self._elements_P), dtype=torch.float64, device=self._device)
        gather_sketch(self._region, self._first_slot_G, sketch_GK)
        gather_squares(self._square_RJ, self._first_run_P, square_P)
        return sketch_GK, square_P

    def _prepare(self, indices: tuple[int, ...]) -> Launch:
        position = {index: place for place, index in enumerate(indices)}
        layout = lay_out([run for index in indices for run in self._runs_P[index]], self._slots_G, position)
        elements, keys = ([column[index] for index in indices] for column in (self._elements_P, self._key_P))
        if len(self._launches) == MOST_LAUNCHES:
            self._launches.clear()
        self._launches[indices] = launch = Launch(layout, elements, keys, self._length, self._device)
        return launch
