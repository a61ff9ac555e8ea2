"""DistributedDataParallel, watched through hooks on its parameters.

A comm hook would see the same gradients, but takes DDP's only slot and changes its last bits when the world size is
no power of two. Hooks on the parameters do neither.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from unisono.listen.models.wrapper import trainable
from unisono.listen.read_timing import GradientLifetime

_DONE: Any = 1
TRAINERS = ("transformers", "lightning", "pytorch_lightning", "accelerate")
MARK, MOST_MARKED = "unisono", 64


class DDPWrapper:
    def __init__(self, model: DistributedDataParallel) -> None:
        self._joined = False
        self._follow(model)
        self._ranks = dist.get_process_group_ranks(model.process_group)

    def wrap_again(self, model: DistributedDataParallel) -> None:
        """The script has wrapped the same module anew: from now on this is the wrapper."""
        self._follow(model)
        self._facts |= {"wrapped": "again"}

    def _follow(self, model: DistributedDataParallel) -> None:
        # Weakly: the model must be free to go when the script lets go of it.
        self._weak_model = weakref.ref(model)
        self._facts = _describe(model)
        self._decided: bool | None = None
        self._prepared = self._replaced = False
        self._marked = not self._has_own_precision() and self._mark()

    @property
    def _model(self) -> DistributedDataParallel:
        model = self._weak_model()
        if model is None:
            raise ReferenceError("the model is gone")
        return model

    def wrapped(self) -> DistributedDataParallel | None:
        """The wrapped model, unless the script has let go of it."""
        return self._weak_model()

    def is_gone(self) -> bool:
        """The script has let go of the wrapper: whatever it trains now is not synchronised."""
        return self._weak_model() is None

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        ignored = getattr(self._model, "parameters_to_ignore", ())
        kept = {id(parameter) for name, parameter in self._model.module.named_parameters() if name not in ignored}
        return [(name, parameter) for name, parameter in trainable(self._model.module) if id(parameter) in kept]

    def ranks(self) -> list[int]:
        return self._ranks

    def will_sync(self) -> bool:
        if self.is_gone():
            return False
        # DDP decides in forward; `require_backward_grad_sync` may have been changed since.
        return bool(self._model.require_forward_param_sync) if self._decided is None else self._decided

    def forward_passed(self) -> None:
        """A forward pass without gradients changes DDP's flag, but not what becomes of the one before."""
        if torch.is_grad_enabled():
            self._decided = bool(self._model.require_forward_param_sync)
            self._prepared = self._prepared or self._model.require_forward_param_sync is True

    def has_reduced(self) -> bool:
        """By what DDP itself has noted, compiled or not: it waits for gradients after such a forward pass only."""
        return self._prepared or (not self.is_gone() and self._model.require_forward_param_sync is True)

    def reduced(self) -> None:
        self._prepared = False
        if not self.is_gone() and self._model.require_forward_param_sync is True:
            # As true as before, but not the `True` that the next forward pass will write there.
            self._model.require_forward_param_sync = _DONE

    def joins(self) -> bool:
        """Once is enough: from then on the workers no longer count their steps alike."""
        self._joined = self._joined or (not self.is_gone() and self._joining())
        return self._joined

    def lifetime_of_gradients(self) -> GradientLifetime:
        model = self._weak_model()
        if model is None:
            return GradientLifetime.STAY
        # A static graph is reduced at the end of its first backward pass, in a callback that is queued before ours.
        first = model.static_graph and not getattr(model, "_static_graph_delay_allreduce_enqueued", False)
        delayed: Any = getattr(model, "_delay_all_reduce_params", None)
        if first or delayed:
            return GradientLifetime.UNCERTAIN
        return GradientLifetime.REPLACED if model.gradient_as_bucket_view else GradientLifetime.STAY

    def plain_mean(self) -> bool:
        if self.is_gone():
            return True
        return not getattr(self._model, "_comm_hooks", ()) and not self._joining()

    def is_model(self, module: object) -> bool:
        return module is self._weak_model()

    def _mark(self) -> bool:
        """Where gradients arrive, DDP's reducer has its hooks. A parameter that is moved to another device or type, or
        replaced, lets them arrive elsewhere: there the mark is missing.
        """
        try:
            for node in self._arrivals():
                node.metadata[MARK] = True
        except Exception:
            # A kind of tensor of which torch does not say where its gradients arrive.
            return False
        return True

    def replaced(self) -> bool:
        if self._marked and not self._replaced and not self.is_gone():
            self._replaced = any(MARK not in node.metadata for node in self._arrivals())
        return self._replaced

    def holds(self, parameters: list[Tensor]) -> bool:
        held = set() if self.is_gone() else {id(parameter) for _, parameter in self.named_parameters()}
        return any(id(parameter) in held for parameter in parameters)

    def _arrivals(self) -> Iterator[Any]:
        """Of some of the parameters: whoever moves a model moves all of it."""
        parameters = [parameter for _, parameter in self.named_parameters()]
        some = parameters[:: -(-len(parameters) // MOST_MARKED)]
        return (get_gradient_edge(parameter).node for parameter in some)

    def _has_own_precision(self) -> bool:
        """DDP itself then exchanges what its parameters hold."""
        return getattr(self._model, "mixed_precision", None) is not None

    def promises_equality(self) -> bool:
        if self.joins():
            return False
        hooks = [] if self.is_gone() else getattr(self._model, "_comm_hooks", ())
        return not any("localSGD" in getattr(hook, "__name__", "") for hook, _ in hooks)

    def unshared_buffers(self) -> list[Tensor]:
        """Only where DDP was told not to broadcast them: otherwise it makes them equal in every forward pass."""
        model = self._weak_model()
        if model is None or model.broadcast_buffers:
            return []
        ignored = getattr(model, "parameters_to_ignore", ())
        buffers = [buffer for name, buffer in model.module.named_buffers() if name not in ignored]
        return [buffer.detach() for buffer in buffers if buffer.is_floating_point()]

    def facts(self) -> dict[str, str]:
        gone, replaced = {"wrapper": "gone"} if self.is_gone() else {}, {"replaced": "yes"} if self.replaced() else {}
        promised = {"equal weights": "promised" if self.promises_equality() else "not promised"}
        joined = {"data": "uneven, inside Join"} if self.joins() else {}
        return self._facts | gone | replaced | promised | joined

    def _joining(self) -> bool:
        return bool(getattr(getattr(self._model, "_join_config", None), "enable", False))


def _describe(model: DistributedDataParallel) -> dict[str, str]:
    hooks = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in getattr(model, "_comm_hooks", ())]
    return {
        "wrapper": type(model).__name__,
        "broadcast buffers": "yes" if model.broadcast_buffers else "no",
        "buffers": str(sum(1 for _ in model.module.buffers())),
        "comm hook": ", ".join(hooks) or "none",
        "wrapped by": _wrapped_by(),
    }


def _wrapped_by() -> str:
    """Whose code is wrapping the model right now: a trainer's, where it is among the callers."""
    frame, packages = sys._getframe(), set[str]()
    while frame is not None:
        packages.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        frame = frame.f_back  # type: ignore[assignment]
    return next((trainer for trainer in TRAINERS if trainer in packages), "script")
