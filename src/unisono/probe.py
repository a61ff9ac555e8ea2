"""Reads one rank's gradients of one step. Does not know that there are other ranks.

P = parameters, G = layer groups, K = sketch length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unisono.groups import layer_groups
from unisono.shares import even_share
from unisono.sketch import Fold, Target, default_length, measure_norm, real_elements, window_seed, wrap

ACCUMULATOR_BYTES = 64 << 20
"""Memory for readings that the listening thread has not yet taken over."""


@dataclass(slots=True)
class Hearing:
    """One step's gradients, as read: squared norms and the still unwrapped sketch of each layer group."""

    probe: Probe
    window: int
    squared_norm_P: Tensor | list[float | Tensor]
    accumulator_G2K: Tensor
    arrived: torch.cuda.Event | None = None
    sketch_GK: Tensor | None = None

    def ready(self) -> bool:
        return self.arrived is None or self.arrived.query()

    def sketches(self) -> Tensor:
        """Called off the training thread; gives the accumulator back."""
        if self.sketch_GK is None:
            self.sketch_GK = wrap(self.accumulator_G2K)
            self.probe.give_back(self.accumulator_G2K)
        return self.sketch_GK

    def discard(self) -> None:
        """Gives the accumulator back unread."""
        if self.sketch_GK is None:
            self.sketch_GK = self.accumulator_G2K[:, :0]
            self.probe.give_back(self.accumulator_G2K)

    def squared_norms(self) -> tuple[int, tuple[float, ...]]:
        """How many parameters have a gradient that is not finite, and the squared norm of each group."""
        squared_norm_P = torch.as_tensor(self.squared_norm_P, dtype=torch.float64)
        squared_norm_G = torch.zeros(len(self.probe.group_names), dtype=torch.float64)
        squared_norm_G.index_add_(0, self.probe.group_of_P, squared_norm_P)
        if squared_norm_G.isfinite().all() or self.sketches().isfinite().all():
            return 0, tuple(squared_norm_G.tolist())
        return int((~squared_norm_P.isfinite()).sum()), tuple(squared_norm_G.tolist())


class Probe:
    def __init__(self, named_parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.names = [name for name, _ in named_parameters]
        self.parameters = [parameter for _, parameter in named_parameters]
        self.device = self.parameters[0].device
        numels = [real_elements(parameter) for parameter in self.parameters]
        self.total = sum(numels)
        self.length = default_length(self.total)
        group_names, group_of = layer_groups(self.names)
        self.group_names: tuple[str, ...] = tuple(group_names)
        self.group_of = list(group_of)
        self.group_of_P = torch.tensor(self.group_of)
        self._fold = Fold(self.names, numels, self.length, self.device)
        self._spare: list[Tensor] = []
        self._to_make = min(64, max(3, ACCUMULATOR_BYTES // (8 * self.length * len(self.group_names))))
        self._accumulator_G2K: Tensor | None = None
        self._target_G: list[Target] = []
        self._silence = 0.0 if self.device.type == "cpu" else torch.zeros((), dtype=torch.float64, device=self.device)
        self._squared_norm_P: list[float | Tensor] = []
        self._window: int | None = None

    def open(self, window: int) -> bool:
        """Begins a reading; false when the listening thread has not yet given an accumulator back."""
        self._accumulator_G2K = self._take()
        if self._accumulator_G2K is None:
            return False
        if window != self._window:
            self._fold.reseed(window_seed(window))
            self._window = window
        self._target_G = [self._fold.target(accumulator_2K) for accumulator_2K in self._accumulator_G2K.unbind()]
        self._squared_norm_P = [self._silence] * len(self.names)
        return True

    def hear(self, index: int) -> None:
        gradient = self.parameters[index].grad
        if gradient is None or self._accumulator_G2K is None:
            return
        target = self._target_G[self.group_of[index]]
        self._squared_norm_P[index] = self._fold.measure(index, gradient, target)

    def close(self) -> Hearing:
        accumulator, self._accumulator_G2K = self._accumulator_G2K, None
        if accumulator is None or self._window is None:
            raise RuntimeError("A reading should be opened before it is closed.")
        hearing = Hearing(self, self._window, self._squared_norm_P, accumulator)
        return _sent_from_device(hearing) if self.device.type == "cuda" else hearing

    def abandon(self) -> None:
        if self._accumulator_G2K is not None:
            self.give_back(self._accumulator_G2K)
            self._accumulator_G2K = None

    def give_back(self, accumulator_G2K: Tensor) -> None:
        self._spare.append(accumulator_G2K.zero_())

    def squared_norm_of(self, indices: Sequence[int]) -> Tensor:
        """Squared norm of the current gradients of some parameters."""
        gradients = [self.parameters[index].grad for index in indices]
        norms = [measure_norm(gradient) for gradient in gradients if gradient is not None]
        plain = sum(norm for norm in norms if isinstance(norm, float))
        moved = [norm.to(self.device) for norm in norms if isinstance(norm, Tensor)]
        return torch.stack(moved).sum() + plain if moved else torch.tensor(plain, dtype=torch.float64)

    def share_of(self, rank: int, world: int) -> list[int]:
        """The parameters whose reduced gradient this rank squares."""
        return even_share([parameter.numel() for parameter in self.parameters], rank, world)

    def release(self) -> None:
        """Lets go of the model: parameters and their gradients must not outlive it for our sake."""
        self.abandon()
        self.parameters = []
        self._spare, self._to_make = [], 0

    def _take(self) -> Tensor | None:
        if self._spare:
            return self._spare.pop()
        if not self._to_make:
            return None
        self._to_make -= 1
        return torch.zeros(len(self.group_names), 2 * self.length, device=self.device)


def _sent_from_device(hearing: Hearing) -> Hearing:
    """Starts the copy of a GPU's reading to the host; the accumulator is free again in stream order."""
    sketch_GK = wrap(hearing.accumulator_G2K)
    hearing.probe.give_back(hearing.accumulator_G2K)
    hearing.sketch_GK = torch.empty(sketch_GK.shape, pin_memory=True).copy_(sketch_GK, non_blocking=True)
    norm_P = torch.stack([norm for norm in hearing.squared_norm_P if isinstance(norm, Tensor)])
    hearing.squared_norm_P = torch.empty(norm_P.shape, dtype=torch.float64, pin_memory=True)
    hearing.squared_norm_P.copy_(norm_P, non_blocking=True)
    hearing.arrived = torch.cuda.Event()
    # On the model's device, which need not be the current one.
    hearing.arrived.record(torch.cuda.current_stream(sketch_GK.device))
    return hearing
