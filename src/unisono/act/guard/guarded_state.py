"""What belongs to a guarded model: its parameters, the optimizers that train it, and what else makes up its state."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS

from unisono.act.checkpoints import Subject
from unisono.listen.models.wrapper import Wrapper


class GuardedState:
    """:param states: Objects with `state_dict` and `load_state_dict`, such as a scheduler or a sampler."""

    def __init__(self, wrapper: Wrapper, model: nn.Module, optimizers: Sequence[Any], states: Sequence[Any]) -> None:
        self.parameters = [parameter for _, parameter in wrapper.named_parameters()]
        self.device = self.parameters[0].device
        self.states = list(states)
        self.scaler: Any = None
        self.scaler_state: dict[str, Any] | None = None
        """What a scaler that is not met yet should start with."""

        self._weak_model = weakref.ref(model)
        # Also what is frozen now: it may be thawed later.
        self._ids = {id(parameter) for parameter in model.parameters()}
        # Weakly, as everything of the user's: in the order in which they were met, which is the same on all workers.
        self._optimizers: list[weakref.ref[Any]] = []
        for one in optimizers:
            self.add_optimizer(one)

    def owns(self, parameters: Sequence[Tensor]) -> bool:
        return any(id(parameter) in self._ids for parameter in parameters)

    def add_optimizer(self, optimizer: Any) -> bool:
        """Whether it is a new one."""
        if isinstance(optimizer, LBFGS):
            raise ValueError(
                "The guard needs an optimizer that evaluates the loss once a step. Found LBFGS, whose line search "
                "looks at steps that a skip would take away. Use another optimizer, or attach without `guard`."
            )
        # Some are wrapped in another, which shows the same groups.
        if any(optimizer is known or optimizer.param_groups is known.param_groups for known in self.optimizers):
            return False
        self._optimizers.append(weakref.ref(optimizer))
        return True

    def all_parameters(self) -> list[Tensor]:
        return list(self.module.parameters())

    def add_scaler(self, scaler: Any) -> None:
        """One that the user has listed among the states is looked after there."""
        if self.scaler is None and not any(scaler is state for state in self.states):
            self.scaler = scaler
            if self.scaler_state is not None:
                scaler.load_state_dict(self.scaler_state)
                self.scaler_state = None

    @property
    def model(self) -> nn.Module:
        """With its wrapper."""
        model = self._weak_model()
        if model is None:
            raise ReferenceError("the model is gone")
        return model

    @property
    def module(self) -> nn.Module:
        model = self.model
        return model.module if isinstance(model, DistributedDataParallel) else model

    @property
    def optimizers(self) -> list[Any]:
        alive = [reference() for reference in self._optimizers]
        return [optimizer for optimizer in alive if optimizer is not None]

    def subject(self) -> Subject:
        return Subject(self.module, self.optimizers, self.states, self.scaler)

    def release(self) -> None:
        self.parameters, self.states, self.scaler = [], [], None
