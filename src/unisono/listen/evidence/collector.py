"""Collects one rank's exact evidence on the training thread: data, random streams, replicas, the optimizer's numbers.

The step tracker tells it when a step begins, which backward passes count, and when the step ends.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unisono.listen.evidence.batch_tracker import BatchTracker
from unisono.listen.evidence.loader_facts import sampler_facts
from unisono.listen.evidence.optimizer_coverage import OptimizerCoverage, describe
from unisono.listen.evidence.raw_evidence import RawEvidence
from unisono.listen.evidence.rng_streams import Snapshot, snapshot
from unisono.listen.evidence.weight_prints import PARTS, WeightPrints, learning_rate, numbers_of
from unisono.listen.listening_plan import ListeningPlan
from unisono.listen.models.wrapper import Wrapper
from unisono.listen.never_raise import never_raise, never_raise_untimed
from unisono.listen.torch_patches import Listener
from unisono.sketch.fingerprint import fingerprint, hash_of

AVERAGERS = "torch.distributed.algorithms.model_averaging.averagers"


class EvidenceCollector(Listener):
    def __init__(
        self,
        wrapper: Wrapper,
        weight_prints: WeightPrints,
        device: torch.device,
        plan: ListeningPlan,
        complain: Callable[[str], None],
        describe: Callable[[], dict[str, str]],
        loader: Any = None,
    ) -> None:
        self.closed = False
        self.pid = os.getpid()
        self.spent = 0.0
        self._forwards = self._forwards_before = 0
        """Forward passes of the wrapped model with gradients, unless it is compiled; and before this step."""

        self._wrapper, self._weight_prints, self._device, self._plan, self._complain = (
            wrapper,
            weight_prints,
            device,
            plan,
            complain,
        )
        self._batches = BatchTracker()
        self._loader, self._describe = loader, describe
        self._wrapper_facts = set(wrapper.facts().items())
        """Whatever has been true so far."""

        self._optimised = OptimizerCoverage(wrapper.named_parameters())
        self._step = 0
        self._due = self._audited = False
        self._look_around = False
        """Random streams and buffers are looked at, too."""

        self._optimizer: Any = None
        self._counted = False
        self._before: Snapshot | None = None
        self._initial: int | Tensor | None = None
        self._look_at_start = False
        """The last step was not synchronised: weights may since have been averaged by hand."""

        self._began = self._asked_for_averager = self._averaged = False
        self._passes = self._updates = 0
        self._raw_evidence = RawEvidence()

    def capturing(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def failed(self, error: Exception) -> None:
        self._complain(f"evidence could not be taken ({type(error).__name__}: {error}); training is not affected")

    def step_is(self, step: int) -> None:
        """The next step begins."""
        self._step = step
        self._forwards_before = self._forwards
        self._due = self._plan.hears(step)
        part, parts = self._plan.audit(step, self._weight_prints.parts) if self._due else (0, 0)
        self._audited = self._due and not self._averaged and self._wrapper.promises_equality()
        self._raw_evidence = RawEvidence(part=part, parts=parts if self._audited else 0)
        self._look_around = self._due and (parts == 1 or self._plan.reading(step) % PARTS == 0)
        self._optimizer, self._counted = None, False

    @never_raise
    def backward_begins(self, roots: Any, grad_tensors: Any) -> None:
        if not self._began:
            self._began = True
            self._raw_evidence.initial = self._weight_prints.all_weights()
        if self._look_at_start and self._audited:
            self._raw_evidence.start = self._weight_prints.all_weights()
        self._look_at_start = False

    @never_raise
    def loading_begins(self, iterator: Any) -> None:
        # Starting a pass draws from the stream by itself.
        wanted = self._look_around and getattr(iterator, "_num_yielded", 0) > 0
        self._before = snapshot(self._device) if wanted else None

    @never_raise
    def loaded(self, iterator: Any, data: Any, indices: list[int] | None) -> None:
        self._compare_streams("loading")
        self._batches.loaded(iterator, data, indices, self._due)

    @never_raise
    def forward_begins(self, model: Any, inputs: Any) -> None:
        if self._wrapper.is_model(model):
            self._batches.forward_begins(inputs, self._due)
            wanted = self._look_around and model.training and torch.is_grad_enabled()
            self._before = snapshot(self._device) if wanted else None

    @never_raise
    def forward_ended(self, model: Any) -> None:
        if self._wrapper.is_model(model):
            self._wrapper.forward_passed()
            self._forwards += torch.is_grad_enabled()
            self._compare_streams("forward")

    def _compare_streams(self, where: str) -> None:
        before, self._before = self._before, None
        if before is not None and where not in self._raw_evidence.streams:
            self._raw_evidence.streams[where] = before, snapshot(self._device)

    @never_raise_untimed
    def backward_counted(self, synced: bool) -> None:
        """The backward pass was ours."""
        self._counted = True
        self._batches.backward_ended()
        self._passes += synced
        if self._audited and synced:
            self._raw_evidence.reduced = self._weight_prints.gradients(
                self._raw_evidence.part, self._raw_evidence.parts
            )

    @never_raise
    def optimizer_begins(self, parameters: list[Tensor], optimizer: Any) -> None:
        # One inside another, or one that follows when the step has ended, has no say.
        first = self._counted and self._optimizer is None
        if not self._optimised.owns(parameters, optimizer) or not first:
            return
        self._optimizer, raw_evidence = optimizer, self._raw_evidence
        self._updates += 1
        raw_evidence.lr = learning_rate(optimizer)
        if self._due:
            raw_evidence.settings = hash_of(numbers_of(optimizer))
        if self._audited:
            raw_evidence.used = self._weight_prints.gradients(raw_evidence.part, raw_evidence.parts)
        if self._optimised.is_new(optimizer):
            raw_evidence.facts["optimizer"] = describe(optimizer)

    def raw_evidence(self, backwards: int, syncs: int) -> RawEvidence:
        """Of the step that ends now."""
        raw_evidence = self._raw_evidence
        raw_evidence.backwards, raw_evidence.syncs = backwards, syncs
        if not self._wrapper.joins():
            raw_evidence.passes, raw_evidence.updates = self._passes, self._updates
        self._look_at_start = syncs == 0
        self._complete(raw_evidence)
        return raw_evidence

    def past_the_wrapper(self) -> bool:
        """No forward pass of the wrapped model has led to the backward passes of this step."""
        return 0 < self._forwards == self._forwards_before

    def forget(self, syncs: int) -> None:
        """The last backward passes belonged to no step."""
        self._passes -= syncs
        self._batches.take()

    @never_raise_untimed
    def _complete(self, raw_evidence: RawEvidence) -> None:
        raw_evidence.batches, raw_evidence.evaluated = self._batches.take()
        self._optimised.look(raw_evidence.facts)
        loader, self._loader = self._loader, None
        if loader is not None and not self._batches.knows_a_loader:
            raw_evidence.facts["loader"] = sampler_facts(loader)
        if raw_evidence.syncs == 0 and not self._asked_for_averager:
            self._asked_for_averager = True
            self._averaged = averager_alive()
            raw_evidence.facts["model"] = self._describe() | {"averager": "yes" if self._averaged else "no"}
        if self._look_around:
            self._tell_of_wrapper(raw_evidence)
        if self._averaged:
            raw_evidence.parts = 0
        elif self._audited:
            self._take_prints(raw_evidence)
        if self._plan.detail(self._step):
            raw_evidence.projections = self._weight_prints.projections()

    def _tell_of_wrapper(self, raw_evidence: RawEvidence) -> None:
        """What has become of it since the start: replaced parameters, another wrapper around them."""
        facts = set(self._wrapper.facts().items())
        if not facts <= self._wrapper_facts:
            self._wrapper_facts |= facts
            raw_evidence.facts.setdefault("model", self._describe())

    def _take_prints(self, raw_evidence: RawEvidence) -> None:
        part, parts = raw_evidence.part, raw_evidence.parts
        raw_evidence.weights, raw_evidence.weight_square = self._weight_prints.weights(part, parts)
        if self._optimizer is not None:
            raw_evidence.state = self._weight_prints.state(self._optimizer, part, parts)
        buffers = self._wrapper.unshared_buffers() if self._look_around else []
        if buffers:
            raw_evidence.buffers = fingerprint(buffers)

    def close(self) -> None:
        self.closed = True
        self._weight_prints.release()
        self._optimised.release()
        self._optimizer = None
        self._batches = BatchTracker()
        self._raw_evidence = RawEvidence()


def averager_alive() -> bool:
    """Whether torch's model averaging is in use: workers then train apart by design. Slow, so asked for once."""
    module: Any = sys.modules.get(AVERAGERS)
    return module is not None and any(
        # Not `isinstance`, which asks the objects themselves: some of them may not be asked.
        issubclass(type(thing), module.ModelAverager)
        for thing in gc.get_objects()
    )
