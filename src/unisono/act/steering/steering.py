"""DistributedDataParallel, steered: in place of the mean, all-reduce leaves the weighted sum that a weighting asks for.

W = workers, N = numbers of a bucket.
"""

from __future__ import annotations

import copy
import math
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from unisono.act.actions.skip import Skipping
from unisono.act.steering.exact_route import ExactRoute
from unisono.act.steering.sketch_route import SketchRoute
from unisono.act.weightings.consensus import distances
from unisono.act.weightings.weighting import Weighting, checked_weights
from unisono.exchange.collectives import SteeringCollectives
from unisono.listen import torch_patches
from unisono.listen.buffer_snapshot import BufferSnapshot
from unisono.listen.messages import Steered


class Steering(torch_patches.Listener):
    """Lives as long as its model: a hook that some workers take away and others do not would hang them all."""

    def __init__(
        self,
        model: DistributedDataParallel,
        collectives: SteeringCollectives,
        route: ExactRoute | SketchRoute,
        weighting: Any,
        manner: Sequence[str],
        per_bucket: bool,
        forget_rejected: bool,
        first_step: int,
        complain: Callable[[str], None],
    ) -> None:
        self.skipped = False
        """The newest synchronised pass is to leave no trace."""

        self._weak_model = weakref.ref(model)
        self._mine = {id(parameter) for parameter in model.parameters()}
        self._collectives, self._route, self._weighting, self._per_bucket = collectives, route, weighting, per_bucket
        self._manner = manner
        self._weightings: dict[tuple[int, ...], Any] = {}
        self._say = complain
        self._said: set[str] = set()
        self._buffers = BufferSnapshot() if forget_rejected else None
        self._waiting: list[tuple[Tensor, torch.futures.Future[Tensor], list[Tensor]]] = []
        self._skipping = Skipping()
        self._mean = SteeredMean(collectives.world)
        self._distance_W = [math.nan] * collectives.world
        """Known to the first worker."""

        self._steered: Steered | None = None
        self._rejected: bool | None = None
        """Whether this worker was, in the pass that has just ended."""

        self._accumulating = False
        self._step, self._passes = first_step, 0

    def begin(self) -> None:
        """Hears of optimizer steps after those who only listen: they look at gradients before one is taken away."""
        torch_patches.connect(self)
        model = self._weak_model()
        if model is not None:
            weakref.finalize(model, self.release).atexit = False

    def __str__(self) -> str:
        weighting = getattr(self._weighting, "__name__", str(self._weighting))
        return ", ".join([re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", weighting), *self._manner])

    @property
    def rejected(self) -> bool:
        """This worker's gradient, in the pass that has just ended, counts nothing."""
        return bool(self._rejected)

    def take(self) -> Steered | None:
        """What was decided since the last call, if anything, and if this is the first worker."""
        steered, self._steered, self.skipped = self._steered, None, False
        return steered

    def bucket_arrived(self, bucket: Any) -> torch.futures.Future[Tensor]:
        self._refuse_what_cannot_be(bucket)
        if self._mean.empty and not self._waiting:
            self.skipped = False
            self._skipping.pass_begins(afresh=True)
        buffer_N, parameters = bucket.buffer(), bucket.parameters()
        devices = [buffer_N.device] if buffer_N.is_cuda else None
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        self._waiting.append((buffer_N, future, parameters))
        self._route.take(_real(buffer_N), parameters)
        if self._per_bucket or bucket.is_last():
            self._decide()
        if bucket.is_last():
            self._conclude()
        return future

    def _refuse_what_cannot_be(self, bucket: Any) -> None:
        if bucket.buffer().is_sparse:
            raise RuntimeError(
                "Steering needs dense gradients. Found a sparse one. Build the embedding with sparse=False, or attach "
                "without `weighting`."
            )
        if getattr(getattr(self._weak_model(), "_join_config", None), "enable", False):
            raise RuntimeError(
                "Steering needs all workers at every step. Found `join`, which lets some of them run out of data. "
                "Give every worker the same number of batches, or attach without `weighting`."
            )

    def _decide(self) -> None:
        gram_WW = self._route.gram()
        weight_W = self._collectives.weights(lambda: self._weigh(gram_WW))
        self._mean.add(sum(len(buffer_N) for buffer_N, _, _ in self._waiting), weight_W, self._distance_W)
        if any(weight_W) and not math.isnan(weight_W[0]):
            self._route.combine(weight_W)
        else:
            self._silence(weight_W[0])
        self._route.finish()
        for buffer_N, future, _ in self._waiting:
            future.set_result(buffer_N)
        self._waiting = []

    def _silence(self, instead: float) -> None:
        """Zeros; or nan where somebody was not finite, as without steering: a loss scaler has to notice."""
        for buffer_N, _, parameters in self._waiting:
            buffer_N.fill_(instead)
            self._skipping.silence(parameters)

    def _weigh(self, gram_WW: Tensor | None) -> list[float]:
        """The first worker's part: nan throughout where a step is skipped and somebody was not finite."""
        if gram_WW is None:
            raise RuntimeError("Only the first worker should weigh.")
        nobody_W = [math.nan] * len(gram_WW)
        self._distance_W, finite_W = nobody_W, gram_WW.diagonal().isfinite()
        if not bool(finite_W.any()):
            return nobody_W
        weight_W = checked_weights(self._weighting_now()(gram_WW), len(gram_WW))
        kept = [worker for worker, weight in enumerate(weight_W) if weight]
        self._distance_W = distances(gram_WW, kept)
        return weight_W if kept or bool(finite_W.all()) else nobody_W

    def _weighting_now(self) -> Callable[[Tensor], Any]:
        """Ours may have a memory: every bucket has its own. A function of the user's is what it is."""
        if not isinstance(self._weighting, Weighting):
            return self._weighting  # type: ignore[no-any-return]
        about = tuple(sorted(id(parameter) for _, _, parameters in self._waiting for parameter in parameters))
        if about not in self._weightings:
            self._weightings[about] = copy.deepcopy(self._weighting)
        return self._weightings[about].at(self._step)  # type: ignore[no-any-return]

    def _conclude(self) -> None:
        """The last bucket of a pass has been decided upon."""
        steered = self._mean.result()
        self._mean = SteeredMean(self._collectives.world)
        self.skipped = not any(steered.weight_W)
        self._rejected = steered.weight_W[self._collectives.rank] == 0
        self._steered = steered if self._collectives.is_first else None
        self._route.pass_ended()
        self._passes += 1
        if self._passes == 2:
            self._complain(
                "two synchronised backward passes in one step: the second compares gradients to which the sum of the "
                "first has been added. Accumulate under `model.no_sync()`"
            )
        if self._route.lacks_moments:
            self._complain("the optimizer keeps no second moments: gradients are compared as they are")

    def _complain(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._say(text)

    def forward_begins(self, model: Any, inputs: Any) -> None:
        own = self._weak_model()
        counts = own is not None and model is own and own.training and torch.is_grad_enabled()
        if self._buffers is not None and own is not None and counts and not self._accumulating:
            self._buffers.remember(own.module)

    def backward_begins(self, roots: Any, grad_tensors: Any) -> None:
        if self._waiting or not self._mean.empty:
            # The pass before broke off.
            self._route.finish()
            self._waiting, self._mean = [], SteeredMean(self._collectives.world)

    def backward_ended(self, failed: bool) -> None:
        # Not inside backward, where autograd may still need the buffers as they are.
        self._accumulating = self._rejected is None
        if self._buffers is not None and self._rejected:
            if self._buffers.empty:
                self._complain("buffers of a compiled model cannot be put back: rejected batches stay in them")
            self._buffers.put_back()
        self._rejected = None
        self._skipping.backward_ended()

    def optimizer_begins(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._owns(parameters):
            self._route.learn_from(optimizer)
            self._skipping.optimizer_begins(parameters, optimizer)

    def optimizer_stepped(self, parameters: list[Tensor], optimizer: Any) -> None:
        if self._owns(parameters):
            self._skipping.optimizer_stepped(optimizer)
            self.step_ended()

    def step_ended(self) -> None:
        self._step += self._passes > 0
        self._passes = 0
        self._accumulating = False

    def gradients_zeroed(self, parameters: list[Tensor]) -> None:
        if self._owns(parameters):
            self._passes = 0

    def _owns(self, parameters: list[Tensor]) -> bool:
        return any(id(parameter) in self._mine for parameter in parameters)

    def release(self) -> None:
        """The model is gone."""
        torch_patches.disconnect(self)
        self._route.finish()


def _real(buffer_N: Tensor) -> Tensor:
    """The same memory, in which a complex number is two."""
    return torch.view_as_real(buffer_N).view(-1) if buffer_N.is_complex() else buffer_N


class SteeredMean:
    def __init__(self, workers: int) -> None:
        self._size = 0
        self._weight_W = [0.0] * workers
        self._distance_W = [0.0] * workers

    @property
    def empty(self) -> bool:
        return self._size == 0

    def add(self, size: int, weight_W: Sequence[float], distance_W: Sequence[float]) -> None:
        """A part of `size` numbers. Weights that are nan, where nobody was finite, count as zero."""
        self._size += size
        for worker, (weight, distance) in enumerate(zip(weight_W, distance_W, strict=True)):
            self._weight_W[worker] += size * (0.0 if math.isnan(weight) else weight)
            self._distance_W[worker] += size * distance

    def result(self) -> Steered:
        return Steered(
            tuple(weight / self._size for weight in self._weight_W),
            tuple(distance / self._size for distance in self._distance_W),
        )
