"""Steering by sketches: 65,536 numbers stand for each gradient, whatever the size of the model.

W = workers, K = sketch length, N = numbers of a bucket.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unisono.exchange.collectives import SteeringCollectives
from unisono.sketch import ModelSketch, real_elements, window_seed
from unisono.sketch.gram import likeliest
from unisono.sketch.length import LONGEST

MOMENTS = ("exp_avg_sq", "square_avg")


class SketchRoute:
    """
    :param window: Over how many steps directions are summed before they are compared.
    :param damping: Not None: gradients are compared divided by the root of the optimizer's second moments.
    """

    def __init__(
        self,
        collectives: SteeringCollectives,
        named_parameters: Sequence[tuple[str, nn.Parameter]],
        window: int,
        damping: float | None,
    ) -> None:
        self._collectives, self._window, self._damping = collectives, window, damping
        self._optimizers: list[weakref.ref[Any]] = []
        self._scaled_any = False
        self._index = {id(parameter): index for index, (_, parameter) in enumerate(named_parameters)}
        device = named_parameters[0][1].device
        names = [name for name, _ in named_parameters]
        elements = [real_elements(parameter) for _, parameter in named_parameters]
        self._reading = ModelSketch(names, elements, [0] * len(names), 1, LONGEST, device)
        self._reading.begin()
        self._buffers: list[Tensor] = []
        self._taken: list[int] = []
        self._summed: dict[tuple[int, ...], Tensor] = {}
        """Directions summed over steps, for each set of parameters that is decided upon together."""

        self._steps = 0

    def take(self, buffer_N: Tensor, parameters: Sequence[Tensor]) -> None:
        self._buffers.append(buffer_N)
        for parameter in parameters:
            # Parameters without numbers are in buckets, too, and nowhere else.
            index = self._index.get(id(parameter))
            if index is None:
                continue
            self._taken.append(index)
            # Not the bucket's view of it, whose order depends on the memory format.
            if parameter.grad is not None:
                self._reading.add(index, self._scaled(parameter, parameter.grad))
        self._reading.flush()

    def gram(self) -> Tensor | None:
        sketch_GK, square_P = self._reading.end()
        sketch_K, square = sketch_GK[0], square_P.sum()
        # Numbers near the largest that there are may overflow when they are added up.
        square = torch.where(sketch_K.isfinite().all(), square, torch.nan)
        if self._window > 1:
            sketch_K = self._over_window(sketch_K, square)
        found = self._collectives.gram([self._collectives.swap(sketch_K).arrived()], square)
        if found is None:
            return None
        gram_WW, square_W = found
        return gram_WW if self._window > 1 else likeliest(gram_WW, square_W)

    def combine(self, weight_W: Sequence[float]) -> None:
        works = [self._collectives.add_up(buffer_N, weight_W[self._collectives.rank]) for buffer_N in self._buffers]
        for work in works:
            work.wait()

    def finish(self) -> None:
        self._buffers, self._taken = [], []
        self._reading.begin()

    @property
    def lacks_moments(self) -> bool:
        """The optimizer has taken a step, and there was nothing to scale gradients by."""
        return self._damping is not None and bool(self._optimizers) and not self._scaled_any

    def learn_from(self, optimizer: Any) -> None:
        if self._damping is not None and all(weak() is not optimizer for weak in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def pass_ended(self) -> None:
        self._steps += 1
        if self._window == 1:
            # Errors of sketches become independent from step to step; sums over steps need the same seed.
            self._reading.reseed(window_seed(self._steps))

    def _over_window(self, sketch_K: Tensor, square: Tensor) -> Tensor:
        """A step that is not finite stays out of the sum, and its worker out of the comparison."""
        key = tuple(sorted(self._taken))
        finite = square.isfinite()
        unit_K = sketch_K / torch.where(square > 0, square, 1).sqrt().to(sketch_K.dtype)
        before_K = self._summed.get(key)
        sum_K = unit_K if before_K is None else before_K * (1 - 1 / self._window) + unit_K
        kept_K = torch.zeros_like(sketch_K) if before_K is None else before_K
        self._summed[key] = torch.where(finite, sum_K, kept_K)
        return torch.where(finite, self._summed[key], torch.nan)

    def _scaled(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        moments = self._moments(parameter)
        if moments is None or self._damping is None:
            return gradient
        self._scaled_any = True
        root = moments.sqrt()
        return gradient / (root + self._damping * moments.mean().sqrt()).clamp(min=torch.finfo(root.dtype).tiny)

    def _moments(self, parameter: Tensor) -> Tensor | None:
        states = [optimizer.state.get(parameter, {}) for weak in self._optimizers if (optimizer := weak()) is not None]
        return next((state[name] for state in states for name in MOMENTS if name in state), None)
