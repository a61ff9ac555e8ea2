"""Follows data on the training thread: which batch of which loader ended up in which backward pass.

A batch counts only when the forward pass it went into has reached backward, so evaluation inside the loop does not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from unisono.evidence.loader_facts import loader_facts, resolved
from unisono.fingerprints import sample

MOST_LEAVES = 16
MOST_EVALUATED = 1_000
MASKS = ("attention_mask", "mask")


@dataclass(slots=True)
class Leaf:
    """A part of a batch: some of its numbers, copied."""

    name: str
    shape: tuple[int, ...]
    numbers: Tensor


@dataclass(slots=True)
class Pull:
    """One batch: where it came from, and some of its contents where they were due."""

    sampler: Callable[[], Any] | None = None
    """What drew it, weakly: one per loader. None where it came from no loader."""

    loader: int | None = None
    """The loader's number, by first use in training."""

    first: bool = False
    """The first batch of a pass over the data."""

    facts: dict[str, str] = field(default_factory=dict)
    """What the loader says of itself, with the first batch of a pass."""

    dataset: int = 0
    """Tells datasets apart that both count from zero."""

    indices: list[int] | None = None
    samples: int | None = None
    leaves: list[Leaf] = field(default_factory=list)
    used: bool = False
    evaluated: bool = False


class BatchWatch:
    def __init__(self) -> None:
        self._latest: Pull | None = None
        self._candidate: Pull | None = None
        self._samplers: list[Callable[[], Any]] = []
        self.batches: list[Pull] = []
        """Of the backward passes of this step."""

        self.evaluated: list[Pull] = []
        """Batches that only went through the model without gradients."""

    def loaded(self, iterator: Any, data: Any, indices: list[int] | None, due: bool) -> None:
        latest = self._latest
        if latest is not None and latest.evaluated and not latest.used and len(self.evaluated) < MOST_EVALUATED:
            self.evaluated.append(latest)
        self._latest = pull = _pull(data, due)
        pull.first = getattr(iterator, "_num_yielded", 0) == 1
        pull.sampler = _weakly(iterator._index_sampler)
        if pull.first or self._is_unknown(iterator._index_sampler):
            pull.facts = loader_facts(iterator)
        if indices is not None:
            pull.dataset, pull.indices = resolved(iterator._dataset, indices)
            pull.samples = len(indices)

    def forward_begins(self, inputs: Any, due: bool) -> None:
        latest = self._latest
        if not torch.is_grad_enabled():
            if latest is not None:
                latest.evaluated = True
        elif latest is not None and not latest.used:
            self._candidate = latest
        elif due:
            self._candidate = _pull(inputs, due)

    def backward_ended(self) -> None:
        pull, self._candidate = self._candidate or self._latest, None
        if pull is not None and not pull.used:
            pull.used, pull.loader = True, self._number(pull)
            self.batches.append(pull)

    def _is_unknown(self, sampler: Any) -> bool:
        return all(known() is not sampler for known in self._samplers)

    def _number(self, pull: Pull) -> int | None:
        if pull.sampler is None:
            return None
        sampler = pull.sampler()
        if self._is_unknown(sampler):
            self._samplers.append(pull.sampler)
        return next(number for number, known in enumerate(self._samplers) if known() is sampler)

    @property
    def knows_a_loader(self) -> bool:
        return bool(self._samplers)

    def take(self) -> tuple[list[Pull], list[Pull]]:
        """The step's batches, and those that were evaluated since the last step."""
        taken = self.batches, self.evaluated
        self.batches, self.evaluated = [], []
        return taken


def _weakly(thing: Any) -> Callable[[], Any]:
    """Loaders and datasets must be free to go. A plain list of batches cannot be held weakly."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


def _pull(data: Any, due: bool) -> Pull:
    leaves = list(islice(_leaves("", data), MOST_LEAVES))
    samples = next((tensor.shape[0] for _, tensor in leaves if tensor.dim()), None)
    sampled = [Leaf(name, tuple(tensor.shape), sample(tensor)) for name, tensor in leaves if due]
    return Pull(samples=samples, leaves=sampled)


def _leaves(name: str, data: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(data, Tensor):
        if data.layout is torch.strided and data.numel():
            yield name, data.detach()
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(str(key), value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from _leaves(name, value)
