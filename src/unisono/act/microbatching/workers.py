"""`unisono.microbatches`: parts of one process's batch take part like workers.

W = micro-batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unisono.act.microbatching.gradients import Gradients, drop, take
from unisono.act.microbatching.routes import Route, route_for
from unisono.act.microbatching.statistics import Statistics
from unisono.act.weightings.weighting import Weighting, damping_of, window_of

REDUCED_ELSEWHERE = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
"""Wrappers whose backward pass already mixes the gradients of several processes."""


def microbatches(
    model: nn.Module, *, weighting: Callable[[Tensor], Tensor], forget_rejected: bool = False
) -> VirtualWorkers:
    """
    Weigh the gradients of micro-batches instead of adding them up.

        workers = unisono.microbatches(model, weighting=unisono.weightings.AgreementFilter(max_distance=0.97))
        for micro in micros:
            with workers.microbatch():
                loss_fn(model(micro)).backward()
        weights = workers.reduce()
        optimizer.step()

    Losses need not be divided by the number of micro-batches. No `zero_grad` is needed either: gradients that are on
    the parameters when a micro-batch begins are dropped. Where nobody agrees, all gradients are None and the optimizer
    changes nothing, neither weights nor momentum.

    With `AgreementFilter(order="sequential")` memory holds two gradients at a time, the sum and the one just computed;
    with all other weightings, one for each micro-batch. On a GPU the first waits for it after every micro-batch, the
    others once a step.

    With a GradScaler, the step is only taken where there is one, and micro-batches that overflowed lower the scale:

        if workers.reduce().any():
            scaler.step(optimizer)
            scaler.update()
        if not all(workers.finite):
            scaler.update(scaler.get_scale() * scaler.get_backoff_factor())

    :param weighting: One of `unisono.weightings`, or any function from the Gram matrix of the micro-batches' gradients
        to their weights.
    :param forget_rejected: BatchNorm's statistics, and all other buffers, become the mean over the kept micro-batches,
        each begun from those before the step; counts are the first kept one's. Otherwise buffers are left alone.
    """
    return VirtualWorkers(model, weighting, forget_rejected)


class VirtualWorkers:
    """Made by `unisono.microbatches`."""

    def __init__(self, model: nn.Module, weighting: Callable[[Tensor], Tensor], forget_rejected: bool) -> None:
        _check_model(model)
        _check_weighting(weighting)
        self.distances: list[float] = []
        """Of the last step's micro-batches, to the sum of the others kept, or to the one before it if sequential."""

        self.finite: list[bool] = []
        """Which of the last step's gradients had no NaN, no infinity and no number too large to square."""

        self._model = model
        # A copy: a weighting with a memory follows one model.
        self._weighting = copy.deepcopy(weighting)
        self._statistics = Statistics(model) if forget_rejected else None
        self._steps = 0
        self._inside = False
        self._route: Route | None = None
        self._parameters: list[nn.Parameter] = []

    @contextmanager
    def microbatch(self) -> Iterator[None]:
        """Around forward and backward of one micro-batch. If they raise, it is as if it had never been."""
        if self._inside:
            raise RuntimeError(
                "Micro-batches should come one after the other. Found `microbatch()` inside another one. "
                "Leave the first `with` block before the next begins."
            )
        self._inside = True
        # Looked up anew: layers may be frozen, thawed or added between steps.
        parameters = self._parameters if self._route is not None else list(self._model.parameters())
        drop(parameters)
        if self._statistics is not None:
            self._statistics.begin()
        try:
            yield
            self._take_up(parameters)
        except BaseException:
            if self._statistics is not None:
                self._statistics.undo()
            raise
        finally:
            drop(parameters)
            self._inside = False

    def _take_up(self, parameters: list[nn.Parameter]) -> None:
        gradients = take(parameters)
        _check_gradients(gradients)
        if self._route is None:
            weighting = self._weighting
            now = weighting.at(self._steps) if isinstance(weighting, Weighting) else weighting
            self._route = route_for(now, parameters, gradients)
            self._parameters = parameters
        self._route.take_up(gradients)
        if self._statistics is not None:
            self._statistics.take()

    def discard(self) -> None:
        """Forgets the micro-batches of the step so far, as after running out of memory: begin it again."""
        self._route, self._parameters = None, []
        if self._statistics is not None:
            self._statistics.settle([])

    def reduce(self) -> Tensor:
        """Write the weighted sum to the parameters' `grad`, or None where nobody counts; return the weights."""
        if self._route is None or self._inside:
            raise RuntimeError(
                "`reduce()` should follow the micro-batches of a step. "
                f"Found {'an open micro-batch' if self._inside else 'none'}. "
                "Run every backward pass inside `with workers.microbatch():`, then reduce."
            )
        route, parameters = self._route, self._parameters
        self._route, self._parameters = None, []
        self._steps += 1
        try:
            outcome = route.outcome()
        except BaseException:
            self.discard()
            raise
        self.distances, self.finite = outcome.distance_W, outcome.finite_W
        kept = [worker for worker, weight in enumerate(outcome.weight_W) if weight]
        if kept:
            outcome.total.hand_to(parameters)
        else:
            drop(parameters)
        if self._statistics is not None:
            self._statistics.settle(kept)
        return torch.tensor(outcome.weight_W, dtype=torch.float64)


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` should be a torch module. Found {type(model).__name__}.")
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    for wrapper in REDUCED_ELSEWHERE:
        if wrapper in kinds:
            raise ValueError(
                f"Micro-batches need a model of one process. Found {wrapper}, which mixes gradients of all processes. "
                "To weigh these, write: unisono.attach(model, optimizer, weighting=...)"
            )


def _check_weighting(weighting: Callable[[Tensor], Tensor]) -> None:
    if not callable(weighting) or isinstance(weighting, type):
        found = f"the class {weighting.__name__}" if isinstance(weighting, type) else repr(weighting)
        raise TypeError(f"`weighting` should be an object, as in unisono.weightings.AgreementFilter(). Found {found}.")
    if window_of(weighting) > 1 or damping_of(weighting) is not None:
        raise ValueError(
            "Micro-batches are compared by their gradients of one step, as they are. Found a weighting that asks for "
            "Windowed or Preconditioned. Leave these out, or steer workers with unisono.attach(weighting=...)."
        )


def _check_gradients(gradients: Gradients) -> None:
    if all(gradient is None for gradient in gradients):
        raise RuntimeError(
            "A micro-batch should end with gradients. Found none on any parameter. "
            "Call loss.backward() inside `with workers.microbatch():`"
        )
    if any(gradient is not None and gradient.layout is not torch.strided for gradient in gradients):
        raise RuntimeError(
            "Gradients of micro-batches should be dense. Found a sparse one. Build the embedding with sparse=False."
        )
