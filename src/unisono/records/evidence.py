"""Records of exact evidence, which is not about a single step. Shapes as in `run.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from unisono.records.run import Floats, Ints, Twins


@dataclass(frozen=True, slots=True)
class FactsRecord:
    """What the workers say of themselves about one topic, side by side."""

    kind: ClassVar[str] = "facts"
    attempt: int
    step: int
    time: float
    topic: str
    """`settings` (versions, unisono), `model`, `optimizer`, `loader`, `initial` (weights before the first step),
    `parameters` (which of them are trained)."""

    same: Mapping[str, str] = field(default_factory=dict)
    """What all workers agree on."""

    differ: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """What they do not: one value per worker."""


@dataclass(frozen=True, slots=True)
class ReplicasRecord:
    """After a difference: every parameter was compared on its own, after the same step on all workers."""

    kind: ClassVar[str] = "replicas"
    attempt: int
    step: int
    time: float
    compared: int
    """Parameters that were compared."""

    differing: int = 0
    parameters: tuple[str, ...] = ()
    """The first differing ones, in the model's order."""

    weights_W: Twins = ()
    distance_W: Floats = ()
    """Distance of each worker's weights from the majority's (else the first worker's), relative to their norm,
    over the differing parameters: estimated from random projections."""


@dataclass(frozen=True, slots=True)
class CoverageRecord:
    """What the workers have drawn in one pass over a loader's data, so far or in the whole pass."""

    kind: ClassVar[str] = "coverage"
    attempt: int
    step: int
    time: float
    loader: int
    """Numbered by first use in training."""

    epoch: int
    """How often the loader had been started before."""

    complete: bool = False
    drawn_W: Ints = ()
    distinct_W: Floats = ()
    """Different samples among those drawn: `drawn_W` where no worker has repeated one, else an estimate."""

    distinct: float | None = None
    """Different samples among those of all workers together: the sum of `distinct_W` where no two workers have drawn
    the same one, else an estimate."""

    dataset: int | None = None
    """Samples in the dataset, where it says."""

    repeated_W: tuple[bool | None, ...] = ()
    """The order of the samples is that of the pass before, although it looks shuffled."""

    held_out: float | None = None
    """Largest share of the samples that one worker evaluates, and does not train on, that other workers train on."""


@dataclass(frozen=True, slots=True)
class StreamsRecord:
    """Random streams that were drawn from, and who shares them."""

    kind: ClassVar[str] = "streams"
    attempt: int
    step: int
    time: float
    consumed: tuple[str, ...] = ()
    """`torch`, `cuda`, `numpy`, `python`, each with ` in forward` or ` in loading`."""

    same: Mapping[str, Twins] = field(default_factory=dict)
    """For each consumed stream that some workers share: who shares it with whom."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch that stood out, for data curation."""

    kind: ClassVar[str] = "batch"
    attempt: int
    step: int
    time: float
    rank: int
    loss: float | None = None
    indices: tuple[int | None, ...] = ()
    """Dataset indices, where known."""
