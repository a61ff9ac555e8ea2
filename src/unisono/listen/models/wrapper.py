"""What listening needs to know of a wrapped model, whatever wraps it."""

from __future__ import annotations

import weakref
from typing import Protocol

import torch.distributed as dist
from torch import Tensor, nn

from unisono.common.layer_groups import canonical_name
from unisono.listen.read_timing import GradientLifetime


class Wrapper(Protocol):
    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Trainable parameters by canonical name."""

    def ranks(self) -> list[int]:
        """Global ranks of the workers that average gradients with each other."""

    def will_sync(self) -> bool:
        """Whether the backward pass that begins now ends in an all-reduce."""

    def lifetime_of_gradients(self) -> GradientLifetime:
        """What becomes of this worker's own gradients before the backward pass that begins now is over."""

    def plain_mean(self) -> bool:
        """Whether all-reduce leaves the plain mean of the workers' gradients."""

    def is_model(self, module: object) -> bool:
        """Whether this is the wrapped model."""

    def forward_passed(self) -> None:
        """A forward pass of the wrapped model has ended."""

    def joins(self) -> bool:
        """Whether workers may run out of data before others do."""

    def has_reduced(self) -> bool:
        """Whether the synchronised pass that has ended followed a forward pass of the wrapper since the last one."""

    def reduced(self) -> None:
        """The last one is over."""

    def is_gone(self) -> bool:
        """Whether the script has let go of the wrapper, though perhaps not of what is in it."""

    def holds(self, parameters: list[Tensor]) -> bool:
        """Whether some of these are trainable parameters of the model as it is now."""

    def promises_equality(self) -> bool:
        """Whether weights, gradients and optimizer state should be equal on all workers."""

    def unshared_buffers(self) -> list[Tensor]:
        """Buffers that nobody makes equal on the workers."""

    def facts(self) -> dict[str, str]:
        """For the comparison of the workers before the first step."""


class PlainModule:
    """A module in one process: its gradient is the only one."""

    def __init__(self, module: nn.Module) -> None:
        self._weak_module = weakref.ref(module)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        module = self._weak_module()
        return [] if module is None else trainable(module)

    def ranks(self) -> list[int]:
        return [dist.get_rank() if dist.is_available() and dist.is_initialized() else 0]

    def will_sync(self) -> bool:
        return True

    def lifetime_of_gradients(self) -> GradientLifetime:
        return GradientLifetime.STAY

    def plain_mean(self) -> bool:
        return True

    def is_model(self, module: object) -> bool:
        return module is self._weak_module()

    def forward_passed(self) -> None:
        """Nothing depends on it."""

    def has_reduced(self) -> bool:
        return True

    def reduced(self) -> None:
        """Nothing depends on it."""

    def joins(self) -> bool:
        return False

    def is_gone(self) -> bool:
        return self._weak_module() is None

    def holds(self, parameters: list[Tensor]) -> bool:
        held = {id(parameter) for _, parameter in self.named_parameters()}
        return any(id(parameter) in held for parameter in parameters)

    def promises_equality(self) -> bool:
        return False

    def unshared_buffers(self) -> list[Tensor]:
        return []

    def facts(self) -> dict[str, str]:
        return {"wrapper": "none"}


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    named = [(canonical_name(name), parameter) for name, parameter in module.named_parameters()]
    return [(name, parameter) for name, parameter in named if parameter.requires_grad and parameter.numel()]
