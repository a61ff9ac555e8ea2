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

from unisono.listen.evidence.loader_facts import loader_facts, resolved, sampler_of
from unisono.sketch.fingerprint import sample

MOST_LEAVES, MOST_ITEMS, DEEPEST = 16, 16, 4
"""A batch may be a list of long lists of plain numbers: it is not searched for tensors to its end."""

MOST_LOADERS = 32
MOST_EVALUATED = 1_000
FEWEST_FLOATS, MOST_FLOATS = 8, 1_024
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

    sampler: Any = None
    """What drew it: one per loader, held only until the batch has been used. None where it came from no loader."""

    place: int = 0
    """Where the sampler lies: tells whether the next batch is of the same loader."""

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
    fed: Tensor | None = None
    """Some of the numbers that the model got, copied: what was loaded may be normalised later. None without floats."""

    used: bool = False
    certain: bool = True
    """It is the batch that was trained on, not one loaded ahead of it."""

    evaluated: bool = False


class BatchTracker:
    def __init__(self) -> None:
        self._latest: Pull | None = None
        self._candidate: Pull | None = None
        self._waiting: Pull | None = None
        """Loaded before batches of another loader were evaluated, and not used yet."""

        self._known: list[tuple[int, Callable[[Any], bool]]] = []
        """Loaders that were trained on, by number, and what recognises them."""

        self._described: Callable[[Any], bool] = _nothing
        self._loaders = 0
        self.batches: list[Pull] = []
        """Of the backward passes of this step."""

        self.evaluated: list[Pull] = []
        """Batches that only went through the model without gradients."""

    def loaded(self, iterator: Any, data: Any, indices: list[int] | None, due: bool) -> None:
        pull = _pull(data, due)
        pull.sampler = sampler_of(iterator)
        pull.place = id(pull.sampler)
        pull.first = getattr(iterator, "_num_yielded", 0) == 1
        pull.evaluated = not torch.is_grad_enabled()
        if pull.first or not (self._is_trained_on(pull) or self._described(pull.sampler)):
            # Also of a pass that was begun before we listened.
            pull.facts, self._described = loader_facts(iterator), recogniser(pull.sampler)
        if indices is not None:
            pull.dataset, pull.indices = resolved(iterator._dataset, indices)
            pull.samples = len(indices)
        if pull.first and self._waiting is not None and self._waiting.place == pull.place:
            # It was only looked at: its loader has begun anew.
            self._waiting = None
        self._put_aside(self._latest, pull)
        self._latest = pull

    def _put_aside(self, last: Pull | None, pull: Pull) -> None:
        """What becomes of a batch when the next one is loaded before it was used."""
        if last is None:
            return
        again = last.place == pull.place
        pull.certain = last.certain or not again
        if last.used:
            return
        if last.evaluated:
            last.leaves, last.sampler = [], None
            self.evaluated = [*self.evaluated[: MOST_EVALUATED - 1], last]
        elif not again:
            # What is not trained on waits for nothing: it was evaluated somewhere else.
            self._waiting = last if self._is_trained_on(last) or not self._loaders else None
        else:
            pull.certain = False
            if last.first and not pull.first:
                # The pass begins with this batch as far as we can see. One that begins with it anyway knows better what
                # its loader is like: scripts look at a batch before they call `set_epoch`.
                pull.first, pull.facts = True, last.facts

    def forward_begins(self, inputs: Any, due: bool) -> None:
        latest = self._latest
        if not torch.is_grad_enabled():
            if latest is not None:
                latest.evaluated = True
            return
        # A batch may be evaluated first and then trained on, but one that waits is likelier to be meant.
        fresh = [pull for pull in (self._waiting, latest) if pull is not None and not pull.used]
        if fresh:
            self._candidate, *passed_over = fresh
            for pull in passed_over:
                pull.used, pull.sampler = True, None
        elif due:
            self._candidate = _pull(inputs, due)
        if due and self._candidate is not None:
            self._candidate.fed = _first_floats(inputs)

    def backward_ended(self) -> None:
        pull, self._candidate = self._candidate or self._latest, None
        if pull is not None and not pull.used:
            pull.used, pull.loader = True, self._numbered(pull.sampler)
            pull.sampler = None
            self.batches.append(pull)
        if self._waiting is not None and self._waiting.used:
            self._waiting = None

    def _is_trained_on(self, pull: Pull) -> bool:
        return any(recognises(pull.sampler) for _, recognises in self._known)

    def _numbered(self, sampler: Any) -> int | None:
        if sampler is None:
            return None
        number = next((number for number, recognises in self._known if recognises(sampler)), None)
        if number is None:
            number, self._loaders = self._loaders, self._loaders + 1
            self._known = [*self._known[-MOST_LOADERS + 1 :], (number, recogniser(sampler))]
        return number

    @property
    def knows_a_loader(self) -> bool:
        return self._loaders > 0

    def take(self) -> tuple[list[Pull], list[Pull]]:
        """The step's batches, and those that were evaluated since the last step."""
        taken = self.batches, self.evaluated
        self.batches, self.evaluated = [], []
        return taken


def recogniser(sampler: Any) -> Callable[[Any], bool]:
    """Holds nothing: loaders and datasets must be free to go. A plain list of batches is known by its place alone."""
    try:
        known = weakref.ref(sampler)
    except TypeError:
        place = id(sampler)
        return lambda other: id(other) == place
    return lambda other: other is not None and known() is other


def _nothing(sampler: Any) -> bool:
    return False


def _pull(data: Any, due: bool) -> Pull:
    leaves = list(islice(_leaves("", data), MOST_LEAVES))
    samples = next((tensor.shape[0] for _, tensor in leaves if tensor.dim()), None)
    sampled = [Leaf(name, tuple(tensor.shape), sample(tensor)) for name, tensor in leaves if due]
    return Pull(samples=samples, leaves=sampled)


def _first_floats(inputs: Any) -> Tensor | None:
    floats = (tensor for name, tensor in _leaves("", inputs) if tensor.is_floating_point() and name not in MASKS)
    tensor = next((tensor for tensor in floats if tensor.numel() >= FEWEST_FLOATS), None)
    return None if tensor is None else sample(tensor, MOST_FLOATS)


def _leaves(name: str, data: Any, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if isinstance(data, Tensor):
        if data.layout is torch.strided and data.numel():
            yield name, data.detach()
    elif depth < DEEPEST and isinstance(data, Mapping):
        for key, value in islice(data.items(), MOST_ITEMS):
            yield from _leaves(str(key), value, depth + 1)
    elif depth < DEEPEST and isinstance(data, list | tuple):
        for value in data[:MOST_ITEMS]:
            yield from _leaves(name, value, depth + 1)
