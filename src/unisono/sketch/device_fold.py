"""Norms and sketches of many gradients on a GPU, one launch for all that have the same type of numbers.

Gradients are noted as they arrive and read together; what comes out is still on its way when `end` returns. Suffixes
give shapes: P = parameters, G = layer groups, K = sketch length, R = runs, J = tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from unisono.sketch.hashing import parameter_key
from unisono.sketch.launching import (
    Choices,
    Launch,
    gather_sketch,
    gather_squares,
    is_aligned,
    readable,
    region_of,
    tiles_of,
    to_device,
)
from unisono.sketch.layout import Run, lay_out, runs_of, slots_wanted


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
        self._runs_P: list[list[Run]] = []
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
        self._pending: list[tuple[int, Tensor]] = []
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        self._choices = Choices(seed, self._length, self._device)

    def begin(self) -> None:
        self._pending = []
        self._region.zero_()
        self._square_RJ.zero_()

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    def takes(self, gradient: Tensor) -> bool:
        return readable(gradient, self._device)

    def add(self, index: int, gradient: Tensor) -> None:
        """Notes a gradient, which must stay as it is until `flush`."""
        self._pending.append((index, gradient))

    def flush(self) -> None:
        batches: dict[tuple[torch.dtype, bool], list[tuple[int, Tensor]]] = {}
        for index, gradient in self._pending:
            batches.setdefault((gradient.dtype, is_aligned(gradient)), []).append((index, gradient))
        self._pending = []
        for batch in batches.values():
            indices, gradients = zip(*batch, strict=True)
            launch = self._launches.get(indices) or self._prepare(indices)
            launch.read(gradients, self._choices, self._region, self._square_RJ)

    def end(self) -> tuple[Tensor, Tensor]:
        """The sketch of each group, in float32, and the squared norm of each parameter, in float64."""
        self.flush()
        sketch_GK = torch.empty(len(self._slots_G), self._length, device=self._device)
        square_P = torch.empty(len(self._elements_P), dtype=torch.float64, device=self._device)
        gather_sketch(self._region, self._first_slot_G, sketch_GK)
        gather_squares(self._square_RJ, self._first_run_P, square_P)
        return sketch_GK, square_P

    def _prepare(self, indices: tuple[int, ...]) -> Launch:
        position = {index: place for place, index in enumerate(indices)}
        layout = lay_out([run for index in indices for run in self._runs_P[index]], self._slots_G, position)
        elements, keys = ([column[index] for index in indices] for column in (self._elements_P, self._key_P))
        self._launches[indices] = launch = Launch(layout, elements, keys, self._length, self._device)
        return launch
