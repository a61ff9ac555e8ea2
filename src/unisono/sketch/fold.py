"""The rotated fold: the reference definition of the sketch, which native kernels match up to summation order.

A parameter's gradient, in logical row-major order, is cut into rows of K elements; each row is multiplied by signs,
rotated and added to the sketch. Suffixes give shapes: G = layer groups, K = sketch length, 2K = its unwrapped
accumulator, N = elements of one gradient, R = its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unisono.sketch.length import check_length
from unisono.sketch.native import Addresses, kernel_for, parts_for, writable_at
from unisono.sketch.norm import Squares
from unisono.sketch.row_plan import RowPlan, Rows, SeedChoices
from unisono.sketch.sparse import fold_sparse


@dataclass(frozen=True, slots=True)
class Target:
    """Where sketches add up, with its address if native code can write there."""

    accumulator_2K: Tensor
    address: int | None


class Fold:
    """
    Folds gradients into sketches of `length` numbers, all choices derived from a seed shared by the ranks.

    :param names: canonical names of the parameters; they, not their order, key the sketch.
    :param elements: real elements of each parameter, as `real_elements` counts them.
    :param length: sketch length, a power of two from 1,024 to 65,536.
    :param native: whether to fold in C what can be; without it, this is the reference.
    """

    def __init__(
        self,
        names: Sequence[str],
        elements: Sequence[int],
        length: int,
        device: torch.device | str,
        seed: int = 0,
        native: bool = True,
    ) -> None:
        self.names = tuple(names)
        self.elements = tuple(elements)
        self.length = check_length(length)
        self.device = torch.device(device)
        self._rows = Rows(self.names, self.elements, length)
        self._wants_native = native and self.device.type == "cpu"
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Draw all choices anew; sketches made before cannot be compared with sketches made after."""
        self.seed = seed
        self._choices = SeedChoices(self._rows, seed, self.device)
        self._addresses = Addresses(self._choices)

    @property
    def plans(self) -> list[RowPlan]:
        return self._choices.plans

    def add(self, index: int, gradient: Tensor, accumulator_2K: Tensor, start: int = 0) -> Tensor:
        """
        Add the gradient of parameter `index` to the accumulator. Its squared norm, in float64 and still on its device.

        :param start: where the gradient begins in the logical order of the parameter, if it is a contiguous part of it.
        """
        square = self.measure(index, gradient, self.target(accumulator_2K), start)
        return torch.as_tensor(square, dtype=torch.float64)

    def target(self, accumulator_2K: Tensor) -> Target:
        """An accumulator as `measure` takes it: looked at once for many gradients."""
        if accumulator_2K.shape != (2 * self.length,):
            raise ValueError(
                f"The accumulator should have {2 * self.length} elements. Found shape {tuple(accumulator_2K.shape)}."
            )
        return Target(accumulator_2K, writable_at(accumulator_2K) if self._wants_native else None)

    def measure(self, index: int, gradient: Tensor, target: Target, start: int = 0) -> float | Tensor:
        """As `add`, but a plain number where that is cheaper to make."""
        at = target.address
        kernel = None if at is None else kernel_for(gradient)
        if kernel is None or at is None:
            return self._measure_other(index, gradient.detach().to(self.device), target, start)
        count, here = gradient.numel(), self._addresses
        self._check_fits(index, start + count)
        begin, parts = gradient.data_ptr(), parts_for(count)
        return kernel.fold(begin, count, start, self.length, here.rows[index], here.words, at, parts)

    def _measure_other(self, index: int, gradient: Tensor, target: Target, start: int) -> float | Tensor:
        self._check_fits(index, start + real_elements(gradient))
        if gradient.is_sparse:
            return fold_sparse(gradient, self.plans[index], self._choices.table, target.accumulator_2K, start)
        flat_N = _flat(gradient)
        if target.address is not None and kernel_for(flat_N) is not None:
            return self.measure(index, flat_N, target, start)
        return _fold_rows(flat_N, self.plans[index], self._choices.table, target.accumulator_2K, start)

    def _check_fits(self, index: int, end: int) -> None:
        if end > self.elements[index]:
            raise ValueError(
                f"The gradient of `{self.names[index]}` should end within its {self.elements[index]} real elements. "
                f"Found an end at {end}."
            )


def wrap(accumulator_G2K: Tensor) -> Tensor:
    """Sketches from accumulators: what ran over the end comes back to the front."""
    front_GK, back_GK = accumulator_G2K.chunk(2, dim=-1)
    return front_GK + back_GK


def real_elements(tensor: Tensor) -> int:
    """The number of real elements of a parameter; a complex element counts twice."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _flat(gradient: Tensor) -> Tensor:
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    return gradient.reshape(-1)


def _fold_rows(flat_N: Tensor, plan: RowPlan, table: Tensor, accumulator_2K: Tensor, start: int) -> Tensor:
    length, (stride,) = accumulator_2K.shape[0] // 2, accumulator_2K.stride()
    front = accumulator_2K.storage_offset()
    squares = Squares(flat_N)
    stretch = min(length, squares.piece)
    head = min(-start % stretch, flat_N.shape[0])
    # Short rows are widened and squared together: a call of torch takes as long as ten thousand numbers.
    for block in (flat_N[:head], *torch.split(flat_N[head:], squares.piece)):
        for wide in torch.split(squares.add(block), stretch) if block.shape[0] else ():
            row, column = divmod(start, length)
            # The accumulator has twice the length so that a rotated row is added in one piece.
            bucket = plan.rotations[row] + column
            target = accumulator_2K.as_strided(wide.shape, (stride,), front + stride * bucket)
            signs = table.as_strided(wide.shape, (1,), plan.offsets[row] + column)
            target.addcmul_(wide, signs, value=plan.signs[row])
            start += wide.shape[0]
    return squares.total()
