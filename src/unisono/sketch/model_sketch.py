"""One reading of a model's gradients: the sketch of each layer group and the squared norm of each parameter.

On a GPU with Triton gradients are noted and read together; everywhere else, and where Triton cannot read one, each is
folded at once. Suffixes give shapes: P = parameters, G = layer groups, K = sketch length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from unisono.sketch.fold import Fold, Target, wrap
from unisono.sketch.gpu.device_fold import DeviceFold
from unisono.sketch.gpu.launching import NUMBERS, VECTOR, available, give_up
from unisono.sketch.gpu.total_norm import total_square


class ModelSketch:
    """
    :param names: canonical names of the parameters.
    :param elements: real elements of each parameter, as `real_elements` counts them.
    :param group_of: the layer group of each parameter, counted from zero.
    """

    def __init__(
        self,
        names: Sequence[str],
        elements: Sequence[int],
        group_of: Sequence[int],
        groups: int,
        length: int,
        device: torch.device,
    ) -> None:
        self._groups, self._length, self._device, self._group_of = groups, length, device, list(group_of)
        self._fold = Fold(names, elements, length, device)
        self._together = DeviceFold(names, elements, group_of, length, device) if available(device) else None
        self._silence = 0.0 if device.type == "cpu" else torch.zeros((), dtype=torch.float64, device=device)
        self._noted: list[tuple[int, Tensor]] = []
        self._accumulator_G2K: Tensor | None = None
        self._target_G: list[Target] = []
        self.square_P: list[float | Tensor] = []
        """Squared norms of the gradients that were folded at once, zeros for the others."""

    @property
    def pending(self) -> bool:
        """Some gradients are noted and not yet read."""
        return bool(self._noted)

    def reseed(self, seed: int) -> None:
        self._fold.reseed(seed)
        if self._together is not None:
            self._together.reseed(seed)

    def begin(self, accumulator_G2K: Tensor | None = None) -> None:
        """:param accumulator_G2K: zeros, where sketches add up; without it, memory is found when it is needed."""
        self.square_P = [self._silence] * len(self._group_of)
        self._noted = []
        self._accumulate_in(accumulator_G2K)
        if self._together is not None:
            self._together.begin()
        else:
            self._memory()  # now: gradients of several devices arrive on several threads

    def add(self, index: int, gradient: Tensor) -> bool:
        """Reads a gradient, or notes it: true if it must stay as it is until `flush`."""
        if self._together is not None:
            self._noted.append((index, gradient))
            return True
        self._fold_at_once(index, gradient)
        return False

    def flush(self) -> None:
        """Reads all that is noted."""
        noted, self._noted = self._noted, []
        if self._together is not None and noted:
            for index, gradient in self._together.read(noted):
                self._fold_at_once(index, gradient)

    def forget(self) -> None:
        """Lets go of what is noted, unread."""
        self._noted = []

    def end(self) -> tuple[Tensor, Tensor]:
        """The sketch of each group, in float32, and the squared norm of each parameter, in float64."""
        if self._together is None:
            return wrap(self._memory()), self._squares()
        self.flush()
        sketch_GK, square_P = self._together.end()
        if self._accumulator_G2K is None:
            return sketch_GK, square_P
        return sketch_GK + wrap(self._accumulator_G2K), square_P + self._squares()

    def _squares(self) -> Tensor:
        if self._device.type == "cpu":
            return torch.tensor(self.square_P, dtype=torch.float64)
        return torch.stack([torch.as_tensor(square, device=self._device) for square in self.square_P])

    def _fold_at_once(self, index: int, gradient: Tensor) -> None:
        self._memory()
        self.square_P[index] = self._fold.measure(index, gradient, self._target_G[self._group_of[index]])

    def _memory(self) -> Tensor:
        if self._accumulator_G2K is None:
            self._accumulate_in(torch.zeros(self._groups, 2 * self._length, device=self._device))
        return cast("Tensor", self._accumulator_G2K)

    def _accumulate_in(self, accumulator_G2K: Tensor | None) -> None:
        self._accumulator_G2K = accumulator_G2K
        accumulators = () if accumulator_G2K is None else accumulator_G2K.unbind()
        self._target_G = [self._fold.target(accumulator_2K) for accumulator_2K in accumulators]


def compile_kernels(dtypes: Iterable[torch.dtype], length: int, device: torch.device) -> str:
    """Why they will not be used, if they could be and do not run; then torch does the work."""
    if not available(device):
        return ""
    try:
        _read_some(dtypes, length, device)
    except Exception as error:
        give_up(device)
        return f"{type(error).__name__}: {error}"
    return ""


def _read_some(dtypes: Iterable[torch.dtype], length: int, device: torch.device) -> None:
    """A few numbers of each type, with and without whole vectors."""
    for dtype in sorted(set(dtypes).intersection(NUMBERS), key=str):
        for elements in (VECTOR, 1):
            numbers = torch.zeros(elements, dtype=dtype, device=device)
            fold = DeviceFold(["weight"], [elements], [0], length, device)
            fold.read([(0, numbers)])
            fold.end()
            total_square([numbers], device)
